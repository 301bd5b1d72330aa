"""Tests of stored snapshots, and of the script that takes them."""

from __future__ import annotations

import ast
import json
import stat
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.errors import LabError, UsageError
from aks_flex_lab.snapshots import Snapshot, load, model, save, take

if TYPE_CHECKING:
    from pathlib import Path

SNAPSHOT = Snapshot(taken=1.5, seconds=0.5, sections={"file": {"/etc/\udcff": {"mode": "0644"}}, "unit": {}})


def test_saved_snapshot_loads_unchanged(tmp_path: Path) -> None:
    save(SNAPSHOT, tmp_path / "s")

    assert load(tmp_path / "s") == SNAPSHOT
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_loading_missing_snapshot_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No snapshot exists") as caught:
        load(tmp_path / "s")

    assert caught.value.name == "snapshot-not-found"


@pytest.mark.parametrize("content", [b"", b"no gzip", b"\x1f\x8b\x08"])
def test_loading_corrupt_snapshot_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "s").write_bytes(content)

    with pytest.raises(LabError, match="not a snapshot") as caught:
        load(tmp_path / "s")

    assert caught.value.name == "snapshot-unreadable"


def test_snapshot_of_another_format_version_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        take(lambda _script, _arguments: json.dumps({"format": 0, "seconds": 1, "sections": {}}))

    assert caught.value.name == "snapshot-outdated"


def test_take_runs_collector_script_and_parses_its_output() -> None:
    def run_inside(text: str, arguments: list[str]) -> str:
        assert text == model.collector_script()
        assert arguments == []
        return json.dumps({"format": 1, "seconds": 0.5, "sections": {"unit": {"a": {"active": "yes"}}}})

    taken = take(run_inside)

    assert taken.sections == {"unit": {"a": {"active": "yes"}}}
    assert taken.seconds == 0.5


@pytest.mark.parametrize("said", ["", "[]", "1", "python3: not found\n"])
def test_take_fails_when_collector_output_is_invalid(said: str) -> None:
    with pytest.raises(LabError, match="did not return a snapshot") as caught:
        take(lambda _script, _arguments: said)

    assert caught.value.name == "snapshot-failed"


def test_collector_script_is_python_3_9() -> None:
    for source in model.collector_sources().values():
        ast.parse(source, feature_version=(3, 9))
