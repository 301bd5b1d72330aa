"""Tests of licenses from metadata, and of SBOMs."""

from __future__ import annotations

import json
import re

import pytest

from release.checkout import ReleaseError
from release.sbom import ShippedPackage, bill_of_materials, licence_list, pinned_hashes, read_package

PINNED = f"""\
one==1.0 \\
    --hash=sha256:{"a" * 64} \\
    --hash=sha256:{"b" * 64}
Two_Three==2.0 ; python_full_version >= '3.11' \\
    --hash=sha256:{"c" * 64}
"""


def metadata(*lines: str) -> str:
    return "\n".join(["Metadata-Version: 2.4", "Name: Some_Package", "Version: 1.0", *lines, "", "Its description."])


@pytest.mark.parametrize(
    ("line", "licence"),
    [
        ("License-Expression: Apache-2.0 OR BSD-3-Clause", "Apache-2.0 OR BSD-3-Clause"),
        ("License: MIT License", "MIT"),
        ("Classifier: License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)", "MPL-2.0"),
    ],
)
def test_licence_is_recognized_in_all_metadata_forms(line: str, licence: str) -> None:
    assert read_package(metadata(line)).licence == licence


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("License-Expression: GPL-3.0-only",),
        ("License-Expression: MIT AND GPL-3.0-only",),
        ("Classifier: License :: OSI Approved :: BSD License",),
    ],
)
def test_unreviewed_licence_fails_release(lines: tuple[str, ...]) -> None:
    with pytest.raises(ReleaseError, match=r"some-package 1.0 has a licence that is not accepted"):
        read_package(metadata(*lines))


def test_package_requirements_exclude_extras() -> None:
    lines = ["License: MIT", "Requires-Dist: typing_extensions>=4; python_version < '3.11'"]
    made = read_package(metadata(*lines, "Requires-Dist: pytest; extra == 'test'"))
    assert made.needs == ("typing-extensions",)


def test_pinned_hashes_are_parsed_per_pin() -> None:
    assert pinned_hashes(PINNED) == {("one", "1.0"): ["a" * 64, "b" * 64], ("two-three", "2.0"): ["c" * 64]}


FOUND = [
    ShippedPackage("one", "1.0", "MIT", ("two-three", "absent")),
    ShippedPackage("two-three", "2.0", "MIT OR Apache-2.0", ()),
]


def test_sbom_lists_packages_with_licences_hashes_and_dependencies() -> None:
    made = json.loads(bill_of_materials("aks-flex-node", "1.2.3", FOUND, PINNED, moment=0))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["timestamp"] == "1970-01-01T00:00:00Z"
    one, two = made["components"]
    assert (one["purl"], one["licenses"]) == ("pkg:pypi/one@1.0", [{"license": {"id": "MIT"}}])
    assert two["licenses"] == [{"expression": "MIT OR Apache-2.0"}]
    assert [item["value"] for item in one["properties"]] == ["a" * 64, "b" * 64]
    needs = {item["ref"]: item["dependsOn"] for item in made["dependencies"]}
    assert needs["pkg:pypi/one@1.0"] == ["pkg:pypi/two-three@2.0"]
    assert needs[made["metadata"]["component"]["bom-ref"]] == ["pkg:pypi/one@1.0", "pkg:pypi/two-three@2.0"]


def test_sbom_is_reproducible_and_serial_depends_on_packages() -> None:
    made = bill_of_materials("aks-flex-node", "1.2.3", FOUND, PINNED, moment=0)
    assert made == bill_of_materials("aks-flex-node", "1.2.3", FOUND, PINNED, moment=0)
    other = bill_of_materials("aks-flex-node", "1.2.3", FOUND[:1], PINNED, moment=0)
    assert json.loads(other)["serialNumber"] != json.loads(made)["serialNumber"]


def test_sbom_has_required_fields_and_consistent_references() -> None:
    """Checks what the schema cannot express: unique names, and dependencies that exist."""
    made = json.loads(bill_of_materials("aks-flex-node", "1.2.3", FOUND, PINNED, moment=0))
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", made["serialNumber"])
    parts = [made["metadata"]["component"], *made["components"]]
    assert all({"type", "name", "version", "bom-ref", "purl", "licenses"} <= part.keys() for part in parts)
    names = [part["bom-ref"] for part in parts]
    assert len(set(names)) == len(names)
    assert [item["ref"] for item in made["dependencies"]] == names
    assert {need for item in made["dependencies"] for need in item["dependsOn"]} <= set(names)


def test_licence_list_has_a_line_for_each_package() -> None:
    rows = [line.split(None, 2) for line in licence_list("aks-flex-rp", FOUND).splitlines()[2:]]
    assert rows == [["one", "1.0", "MIT"], ["two-three", "2.0", "MIT OR Apache-2.0"]]
