"""Tests of Kubernetes versions: comparison, and matching components."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from aks_flex_lab.versions import NodeVersions
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


def test_table_has_a_complete_row_for_every_minor_version() -> None:
    rows = versions.tested_table()

    assert [row["kubernetes"] for row in rows] == ["1.36", "1.35", "1.34", "1.33", "1.32", "1.31"]
    assert {tuple(row) for row in rows} == {("kubernetes", "containerd", "runc", "cni", "npd", "tests")}
    assert all(versions.parse_version(row[name]) for row in rows for name in versions.TITLES)


def test_default_versions_of_the_lab_are_in_the_table() -> None:
    lab = asdict(NodeVersions())

    minor = lab["kubernetes"].rpartition(".")[0]
    [row] = [row for row in versions.tested_table() if row["kubernetes"] == minor]
    assert row == {**lab, "kubernetes": minor, "tests": "every change"}


@pytest.mark.parametrize(
    ("chosen", "untested"),
    [
        ({"kubernetes": "1.31.0", "containerd": "2.4.2"}, {}),
        ({"kubernetes": "1.36.99"}, {}),
        ({"kubernetes": "1.37.0"}, {"kubernetes": "1.37.0"}),
        ({"kubernetes": "1.30.14", "runc": "1.4.2"}, {"kubernetes": "1.30.14"}),
        ({"kubernetes": "1.36.3", "containerd": "1.7.2", "cni": "1.7.0"}, {}),
        (
            {"kubernetes": "v1.36.3", "containerd": "v1.6.9", "runc": "1.1.12"},
            {"containerd": "v1.6.9", "runc": "1.1.12"},
        ),
        ({"npd": "1.35.1", "agent": "9.9.9"}, {"npd": "1.35.1"}),
        ({}, {}),
    ],
)
def test_version_is_untested_when_its_minor_version_is_not_listed(
    chosen: dict[str, str], untested: dict[str, str]
) -> None:
    assert versions.untested_versions({name: {"version": text} for name, text in chosen.items()}) == untested


def test_untested_message_names_the_component_and_the_tested_versions() -> None:
    assert versions.untested_message({"containerd": "v1.6.9", "kubernetes": "1.37.0"}) == (
        "containerd 1.6.9 is not in the table of tested versions (1.7, 2.4). "
        "Kubernetes 1.37.0 is not in the table of tested versions (1.31, 1.32, 1.33, 1.34, 1.35, 1.36)."
    )


def test_tested_components_table_cannot_be_modified_by_callers() -> None:
    versions.tested_components("1.34.4")["runc"] = "0"

    assert versions.tested_components("1.34.4")["runc"] != "0"
