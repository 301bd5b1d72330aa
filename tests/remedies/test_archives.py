"""Follows the remedies of errors of archives and offline bundles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.remedies.artifact_harness import flex, running_site
from tests.remedies.catalogue import command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.remedies.artifact_harness import Site


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as site:
        yield site


def test_corrected_archive_at_the_same_url_is_used(site: Site) -> None:
    path = site.path("containerd")
    whole = site.files[path]
    site.files[path] = whole[: len(whole) // 2]
    assert site.refusal("containerd").name == "archive-corrupt"
    site.files[path] = whole
    site.stage("containerd")


@pytest.mark.remedy("offline-bundle-incomplete")
def test_bundle_is_created_for_the_configuration(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    target = site.room / "bundle.tar"
    assert flex(monkeypatch, "artifacts", "bundle", target, "--config", site.config_file()) == 0
    changed: dict[str, object] = {"runc__version": "1.4.9"}
    error = site.refusal(artifacts__bundle=str(target), **changed)
    assert error.name == "offline-bundle-incomplete"
    site.publish("runc", **changed)
    file = str(site.config_file(artifacts__bundle=str(target), **changed))  # as it is on this machine
    words = command(
        "offline-bundle-incomplete", "aks-flex-node artifacts bundle", TARGET=str(target), FILE=file, ARCH="amd64"
    )
    assert flex(monkeypatch, *words[1:]) == 0
    site.stage(artifacts__bundle=str(target), **changed)
