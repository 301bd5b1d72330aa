"""Tests of Kubernetes versions: comparison, and matching components."""

from __future__ import annotations

import pytest

from aks_flex_rp.resource import versions

IN_ORDER = ["1.9.0", "1.30.0-alpha.1", "1.30.0-rc.1", "1.30.0", "1.30.1", "1.31.0", "2.0.0"]


def test_versions_are_ordered_numerically_with_prereleases_first() -> None:
    read = [versions.parse_version(text) for text in IN_ORDER]

    assert None not in read
    assert sorted(read, key=lambda each: each or versions.KubernetesVersion(0, 0)) == read


def test_vendor_suffix_of_version_is_ignored() -> None:
    assert versions.parse_version("v1.34.4+k3s1") == versions.parse_version("1.34.4")


@pytest.mark.parametrize("text", ["", "1", "one", "1.2.3.4", "1.2.x", " 1.2.3", "1.2.3 "])
def test_invalid_version_is_parsed_as_none(text: str) -> None:
    assert versions.parse_version(text) is None


def test_version_is_formatted_without_prefix_and_build_suffix() -> None:
    assert [str(versions.parse_version(text)) for text in ("v1.34.4", "1.34", "1.34.0-rc.1+x")] == [
        "1.34.4",
        "1.34.0",
        "1.34.0-rc.1",
    ]


def test_unlisted_minor_version_uses_nearest_lower_or_first_components() -> None:
    first, *_, last = sorted(versions.TESTED_COMPONENTS)

    assert versions.tested_components(f"{last[0]}.{last[1] + 5}.0") == versions.TESTED_COMPONENTS[last]
    assert versions.tested_components(f"{first[0]}.{first[1] - 5}.0") == versions.TESTED_COMPONENTS[first]
    assert versions.tested_components("nonsense") == versions.TESTED_COMPONENTS[first]


def test_tested_components_table_cannot_be_modified_by_callers() -> None:
    versions.tested_components("1.34.4")["runc"] = "0"

    assert versions.tested_components("1.34.4")["runc"] != "0"
