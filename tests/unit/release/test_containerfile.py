"""Tests of the provider's Containerfile, without a build."""

from __future__ import annotations

import re

import pytest
import yaml

from aks_flex_rp.settings import DEFAULT_PORT
from release.checkout import HOME

RECIPE = HOME / "packaging" / "rp" / "Containerfile"


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in text.splitlines() if line)]


def last_stage() -> list[tuple[str, str]]:
    found = instructions()
    return found[max(number for number, (word, _) in enumerate(found) if word == "FROM") :]


def value(word: str) -> str:
    [found] = [rest for name, rest in last_stage() if name == word]
    return found


def copied() -> list[str]:
    lines = [rest.split() for word, rest in instructions() if word == "COPY" and "--from=" not in rest]
    return [path for line in lines for path in line[:-1] if not path.startswith("--")]


@pytest.mark.parametrize("path", copied())
def test_path_copied_by_containerfile_exists(path: str) -> None:
    assert (HOME / path).exists()


def test_containerfile_copies_sources_and_requirements() -> None:
    assert {"src/aks_flex_node", "src/aks_flex_rp", "requirements/rp.txt"} <= set(copied())


def test_container_user_and_entrypoint_match_deployment() -> None:
    documents = yaml.safe_load_all((HOME / "packaging" / "kubernetes" / "50-service.yaml").read_text())
    [pod] = [item["spec"]["template"]["spec"] for item in documents if item["kind"] == "Deployment"]
    context = pod["securityContext"]
    assert value("USER") == f"{context['runAsUser']}:{context['runAsGroup']}"
    assert pod["containers"][0]["command"][0] in value("ENTRYPOINT")


def test_container_is_built_in_separate_stage_from_pinned_packages() -> None:
    assert sum(word == "FROM" for word, _ in instructions()) == 2
    [install] = [rest for word, rest in instructions() if word == "RUN" and "pip install" in rest]
    assert "--require-hashes" in install
    assert not any(word == "RUN" for word, _ in last_stage())


def test_container_health_check_uses_exposed_port() -> None:
    assert value("EXPOSE") == str(DEFAULT_PORT)
    assert '["healthy"]' in value("HEALTHCHECK")
    assert f":{DEFAULT_PORT}" in (HOME / "packaging" / "rp" / "healthy").read_text()
