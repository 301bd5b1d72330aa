"""Tests of `aks-flex-lab mirror …` with a running mirror."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from aks_flex_lab.cli.mirror import app
from aks_flex_lab.errors import LabError
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.mirror.fault_rules import StatusFault

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.mirror.control import MirrorClient
    from aks_flex_lab.processes import CommandResult

    Lab = Callable[..., str]


@pytest.fixture
def lab(mirror: MirrorClient, tmp_path: Path) -> Lab:
    """Returns a function that runs a command and returns its output. The mirror is at the lab's usual path."""
    layout = LabLayout("test", tmp_path, tmp_path / "cache")
    room = layout.components / "mirror"
    room.mkdir(parents=True)
    (room / "control.sock").symlink_to(mirror.control)

    def type_in(*words: str) -> str:
        result = CliRunner().invoke(app, words, obj=layout)
        if isinstance(result.exception, LabError):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return type_in


def test_added_rule_is_listed_with_its_hits_until_reset(
    lab: Lab, mirror: MirrorClient, curl: Callable[..., CommandResult]
) -> None:
    assert "No fault rule is active" in lab("list")
    said = lab("add", "github.com/*", "status", "code=503", "retry_after=1", "--times", "3")
    assert "status code=503 retry_after=1 for 3 files of the mirror." in said
    curl("github.com/runc/runc.amd64")
    (rule,) = mirror.rules()
    assert (rule.glob, rule.fault, rule.times) == ("github.com/*", StatusFault(503, 1), 3)
    assert lab("list").split()[5:] == [str(rule.id), "status", "code=503", "retry_after=1", "github.com/*", "1", "3"]
    assert json.loads(lab("list", "--json"))[0]["hits"] == 1
    lab("reset")
    assert mirror.rules() == ()


def test_rule_without_files_is_reported_and_an_invalid_one_refused(lab: Lab, mirror: MirrorClient) -> None:
    assert "Check the pattern" in lab("add", "dl.k8s.io/v1/kublet", "corrupt")
    with pytest.raises(LabError, match="kind cut cannot be made of rate=1"):
        lab("add", "*", "cut", "rate=1")
    assert len(mirror.rules()) == 1


def test_requests_command_shows_fetched_files(lab: Lab, curl: Callable[..., CommandResult]) -> None:
    assert "No request since" in lab("requests")
    curl("github.com/runc/runc.amd64")
    assert lab("requests").split() == ["REQUESTS", "BYTES", "PATH", "1", "5", "github.com/runc/runc.amd64"]
    assert json.loads(lab("requests", "--json")) == [
        {"path": "github.com/runc/runc.amd64", "requests": 1, "bytes": 5}
    ]
