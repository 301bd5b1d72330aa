"""A bill of materials for each program: CycloneDX 1.6, the same bytes for the same packages."""

from __future__ import annotations

import json
import re
import uuid
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from release.licences import plain

if TYPE_CHECKING:
    from release.licences import Package

SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # of names that are addresses, by RFC 4122


def hashes(requirements: str) -> dict[tuple[str, str], list[str]]:
    """What the pinned requirements accept of each package: the checksums of its wheels."""
    found: dict[tuple[str, str], list[str]] = {}
    for block in re.split(r"\n(?=\S)", requirements):
        if pin := re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block):
            found[plain(pin[1]), pin[2]] = re.findall(r"--hash=sha256:([0-9a-f]{64})", block)
    return found


def bill(program: str, version: str, found: list[Package], requirements: str, *, moment: int) -> str:
    accepted = hashes(requirements)
    purl = f"pkg:generic/{program}@{version}"
    root = {
        "type": "application",
        "bom-ref": purl,
        "name": program,
        "version": version,
        "licenses": [{"license": {"id": "MIT"}}],
        "purl": purl,
    }
    made: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(moment, timezone.utc).isoformat().replace("+00:00", "Z"),
            "lifecycles": [{"phase": "build"}],
            "component": root,
        },
        "components": [_component(item, accepted.get((item.name, item.version), [])) for item in found],
        "dependencies": [_dependency(purl, sorted(_purl(item) for item in found)), *_dependencies(found)],
    }
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(SPACE, json.dumps(made, sort_keys=True))}"
    return json.dumps(made, indent=2) + "\n"


def _purl(item: Package) -> str:
    return f"pkg:pypi/{item.name}@{item.version}"


def _component(item: Package, accepted: list[str]) -> dict[str, Any]:
    single = " " not in item.licence
    return {
        "type": "library",
        "bom-ref": _purl(item),
        "name": item.name,
        "version": item.version,
        "licenses": [{"license": {"id": item.licence}} if single else {"expression": item.licence}],
        "purl": _purl(item),
        # One package has a wheel for each Python and processor, so no one checksum is the component's own.
        "properties": [{"name": "aks-flex-node:accepted-sha256", "value": value} for value in accepted],
    }


def _dependencies(found: list[Package]) -> list[dict[str, Any]]:
    named: dict[str, list[str]] = {}
    for item in found:
        named.setdefault(item.name, []).append(_purl(item))
    return [
        _dependency(_purl(item), sorted(ref for name in item.needs for ref in named.get(name, []))) for item in found
    ]


def _dependency(ref: str, needs: list[str]) -> dict[str, Any]:
    return {"ref": ref, "dependsOn": needs}
