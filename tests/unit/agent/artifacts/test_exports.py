"""What the package offers is there, by name."""

from __future__ import annotations

import pytest

from aks_flex_node.agent import artifacts


@pytest.mark.parametrize("name", artifacts.__all__)
def test_every_name_that_is_offered_is_there(name: str) -> None:
    assert getattr(artifacts, name).__name__ == name


def test_a_name_that_is_not_offered_is_not_there() -> None:
    assert not hasattr(artifacts, "nothing")
    assert {"Artifact", "ArtifactTree", "ArtifactFile", *artifacts.LAZY_EXPORTS} == set(artifacts.__all__)
