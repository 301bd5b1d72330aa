"""Licences of the shipped packages, and a CycloneDX bill of materials for each program."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timezone
from email.parser import HeaderParser
from typing import TYPE_CHECKING, Any

from release.checkout import ReleaseError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from email.message import Message

    from release.program_archives import PackageTree


# Accepted licences: permissive ones, and MPL-2.0, whose obligations apply only to its own files.
ACCEPTED_LICENCES = {
    *("0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "MPL-2.0", "PSF-2.0", "Unlicense"),
}
# SPDX identifiers of older licence names.
LICENCE_NAMES = {
    "MIT License": "MIT",
    "ISC License": "ISC",
    "Apache 2.0": "Apache-2.0",
    "License :: OSI Approved :: MIT License": "MIT",
    "License :: OSI Approved :: ISC License (ISCL)": "ISC",
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
}
# Packages without a precise licence in their metadata. Their licence files were reviewed.
REVIEWED = {"isodate": "BSD-3-Clause", "jinja2": "BSD-3-Clause", "uvloop": "MIT OR Apache-2.0"}


@dataclass(frozen=True, order=True)
class ShippedPackage:
    """A third-party package that is shipped with a program."""

    name: str
    version: str
    licence: str
    needs: tuple[str, ...]


def normalized_name(name: str) -> str:
    """Returns the normalized name of a package (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def shipped_packages(trees: Iterable[PackageTree]) -> list[ShippedPackage]:
    """Returns all packages and versions of the trees, without duplicates."""
    texts = {path.read_text() for tree in trees for path in tree.folder.glob("*.dist-info/METADATA")}
    return sorted({read_package(text) for text in texts})


def read_package(metadata: str) -> ShippedPackage:
    headers = HeaderParser().parsestr(metadata)
    needs = {normalized_name(found[0]) for line in headers.get_all("Requires-Dist", []) if (found := _needed(line))}
    return ShippedPackage(
        normalized_name(headers["Name"]), headers["Version"], licence(headers), tuple(sorted(needs))
    )


def _needed(line: str) -> re.Match[str] | None:
    return None if "extra ==" in line else re.match(r"[A-Za-z0-9._-]+", line)


def licence(headers: Message) -> str:
    """Returns the licence as an SPDX expression."""
    name = normalized_name(headers["Name"])
    classifiers = [line for line in headers.get_all("Classifier", []) if line.startswith("License ::")]
    candidates = [headers["License-Expression"], REVIEWED.get(name), headers["License"], *classifiers]
    for text in filter(None, candidates):
        expression: str = LICENCE_NAMES.get(text.strip(), text.strip())
        if set(re.split(r"\s+(?:AND|OR)\s+", expression)) <= ACCEPTED_LICENCES:
            return expression
    raise ReleaseError(
        f"{name} {headers['Version']} has a licence that is not accepted: "
        f"{[text[:60] for text in candidates if text]}. Review it and add it to "
        "ACCEPTED_LICENCES or REVIEWED, or remove the package."
    )


def licence_list(program: str, found: list[ShippedPackage]) -> str:
    """Returns a text list of the shipped packages and their licences."""
    rows = [f"{item.name:<24} {item.version:<14} {item.licence}" for item in found]
    head = f"{program} is licensed under the MIT licence. It contains these packages with their licences:"
    return "\n".join([head, "", *rows, ""])


UUID_NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # namespace for URLs, RFC 4122


def pinned_hashes(requirements: str) -> dict[tuple[str, str], list[str]]:
    """Returns the wheel checksums of each pinned package."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in re.split(r"\n(?=\S)", requirements):
        if pin := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block):
            found[normalized_name(pin[1]), pin[2]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
    return found


def bill_of_materials(
    program: str,
    version: str,
    found: list[ShippedPackage],
    requirements: str,
    *,
    moment: int,
    system: Iterable[dict[str, Any]] = (),
) -> str:
    """Returns the document. `system` are the components of an image that are no Python packages."""
    accepted = pinned_hashes(requirements)
    purl = f"pkg:generic/{program}@{version}"
    root = {
        "type": "application",
        "bom-ref": purl,
        "name": program,
        "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
        "purl": purl,
    }
    document: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(moment, timezone.utc).isoformat().replace("+00:00", "Z"),
            "lifecycles": [{"phase": "build"}],
            "component": root,
        },
        "components": [
            *(_component(item, accepted.get((item.name, item.version), [])) for item in found),
            *system,
        ],
        "dependencies": [_dependency(purl, sorted(_purl(item) for item in found)), *_dependencies(found)],
    }
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(UUID_NAMESPACE, json.dumps(document, sort_keys=True))}"
    return json.dumps(document, indent=2) + "\n"


def _purl(item: ShippedPackage) -> str:
    return f"pkg:pypi/{item.name}@{item.version}"


def _component(item: ShippedPackage, accepted: list[str]) -> dict[str, Any]:
    single = " " not in item.licence
    return {
        "type": "library",
        "bom-ref": _purl(item),
        "name": item.name,
        "version": item.version,
        "licenses": [{"license": {"id": item.licence}} if single else {"expression": item.licence}],
        "purl": _purl(item),
        # A package has a wheel for each Python and architecture, so the component has no single checksum.
        "properties": [{"name": "aks-flex-node:accepted-sha256", "value": value} for value in accepted],
    }


def _dependencies(found: list[ShippedPackage]) -> list[dict[str, Any]]:
    named: dict[str, list[str]] = {}
    for item in found:
        named.setdefault(item.name, []).append(_purl(item))
    return [
        _dependency(_purl(item), sorted(ref for name in item.needs for ref in named.get(name, []))) for item in found
    ]


def _dependency(ref: str, needs: list[str]) -> dict[str, Any]:
    return {"ref": ref, "dependsOn": needs}
