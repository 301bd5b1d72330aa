"""Damaged offline bundles: a verified artifact or an error, and nothing else."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aks_flex_node.agent.artifacts.bundle import OfflineBundle
from aks_flex_node.agent.artifacts.cache import ArtifactCache
from aks_flex_node.agent.artifacts.model import Artifact, ArtifactFile
from aks_flex_node.errors import ArtifactError
from tests.fuzz.attempts import tried
from tests.fuzz.mutations import damaged, json_values

URL = "https://publisher.example/tool"
TOOL = b"tool" * 100
DIGEST = hashlib.sha256(TOOL).hexdigest()
ARTIFACT = Artifact("tool", "1.0", URL, (ArtifactFile("tool", "tool"),))
ENTRY = {
    "component": "tool",
    "version": "1.0",
    "url": URL,
    "digest": f"sha256:{DIGEST}",
    "file": f"sha256-{DIGEST}/tool",
    "size": len(TOOL),
}
MANIFEST = json.dumps({"format": 1, "arch": "amd64", "artifacts": [ENTRY]}).encode()


def tar_of(manifest: bytes, mode: str = "w") -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in (("manifest.json", manifest), (str(ENTRY["file"]), TOOL)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, BytesIO(content))
    return made.getvalue()


def found(content: bytes) -> bytes | None:
    """Returns the artifact from a bundle; None when the bundle is rejected."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bundle.tar"
        path.write_bytes(content)
        bundle = OfflineBundle.at(str(path), ArtifactCache(Path(folder) / "cache"))
        blob = tried(lambda: bundle.find(ARTIFACT, None), ArtifactError)
        if isinstance(blob, ArtifactError):
            assert blob.name in {"offline-bundle-corrupt", "offline-bundle-incomplete", "digest-invalid"}, blob
            return None
        return blob.path.read_bytes()[blob.offset : blob.offset + blob.size]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_valid_offline_bundle_yields_its_artifact(mode: str) -> None:
    assert found(tar_of(MANIFEST, mode)) == TOOL


@given(damaged(tar_of(MANIFEST)) | damaged(tar_of(MANIFEST, "w:gz")))
def test_damaged_offline_bundle_yields_its_artifact_or_none(content: bytes) -> None:
    assert found(content) in {TOOL, None}


@given(damaged(MANIFEST))
def test_damaged_manifest_yields_artifact_with_matching_hash_or_none(manifest: bytes) -> None:
    given_out = found(tar_of(manifest))
    assert given_out is None or f"sha256:{hashlib.sha256(given_out).hexdigest()}".encode() in manifest.lower()


@given(st.sampled_from(sorted(ENTRY)), json_values())
def test_manifest_entry_with_arbitrary_value_yields_artifact_or_none(key: str, value: Any) -> None:
    entry = {**ENTRY, key: value}
    manifest = json.dumps({"format": 1, "arch": "amd64", "artifacts": [entry]}).encode()
    assert found(tar_of(manifest)) in {TOOL, None}
    assert found(tar_of(manifest, "w:gz")) in {TOOL, None}


def test_offline_bundle_with_huge_header_size_is_refused() -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 1 << 50
    assert found(header.tobuf(tarfile.GNU_FORMAT) + tar_of(MANIFEST)) is None
