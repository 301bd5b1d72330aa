"""Checks that all exported names of the package exist."""

from __future__ import annotations

import pytest

from aks_flex_node.agent import artifacts


@pytest.mark.parametrize("name", artifacts.__all__)
def test_exported_artifacts_name_resolves(name: str) -> None:
    assert getattr(artifacts, name).__name__ == name


def test_unexported_artifacts_name_is_missing_and_all_is_complete() -> None:
    assert not hasattr(artifacts, "nothing")
    assert {"Artifact", "ArtifactTree", "ArtifactFile", *artifacts.LAZY_EXPORTS} == set(artifacts.__all__)
