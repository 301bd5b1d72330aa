"""Tests of `aks-flex-lab mirror …` with a running mirror."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from aks_flex_lab.cli.mirror import app
from aks_flex_lab.errors import LabError
from aks_flex_lab.layout import LabLayout
from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    ChecksumFault,
    CorruptFault,
    CutFault,
    MirrorFault,
    SlowFault,
    StallFault,
    StatusFault,
)

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


@pytest.mark.parametrize(
    ("words", "switch"),
    [
        (("slow", "*", "--rate", "200k"), SlowFault(204800)),
        (("stall", "*"), StallFault()),
        (("stall", "*", "--after", "10M", "--hold", "5"), StallFault(ByteAmount(10 << 20), 5)),
        (("cut", "*"), CutFault()),
        (("cut", "*", "--after", "25%"), CutFault(ByteAmount(percent=25))),
        (("corrupt", "*"), CorruptFault()),
        (("missing", "*"), StatusFault(404)),
        (("unavailable", "*"), StatusFault(503)),
        (("unavailable", "*", "--retry-after", "3"), StatusFault(503, 3)),
        (("checksum", "*"), ChecksumFault()),
    ],
)
def test_each_command_adds_its_fault_rule(
    lab: Lab, mirror: MirrorClient, words: tuple[str, ...], switch: MirrorFault
) -> None:
    lab(*words, "--times", "2")
    (rule,) = mirror.rules()
    assert (rule.glob, rule.fault, rule.times) == ("*", switch, 2)


def test_command_prints_matching_files_and_warns_without_a_match(lab: Lab) -> None:
    assert "cut after=50% for 1 file of the mirror." in lab("cut", "dl.k8s.io/v1/kubelet")
    assert "Check the pattern" in lab("corrupt", "dl.k8s.io/v1/kublet")


def test_list_shows_rules_and_hits(lab: Lab, mirror: MirrorClient, curl: Callable[..., CommandResult]) -> None:
    assert "No fault rule is active" in lab("list")
    rule = mirror.add("github.com/*", StatusFault(503, 1), times=3).rule
    curl("github.com/runc/runc.amd64")
    assert lab("list").split()[5:] == [str(rule.id), "status", "code=503", "retry_after=1", "github.com/*", "1", "3"]
    assert json.loads(lab("list", "--json"))[0]["hits"] == 1


def test_remove_deletes_one_rule_and_reset_deletes_all(lab: Lab, mirror: MirrorClient) -> None:
    first = mirror.add("*", CorruptFault()).rule
    mirror.add("*", CutFault())
    lab("remove", str(first.id))
    assert [rule.fault for rule in mirror.rules()] == [CutFault()]
    with pytest.raises(LabError, match="No fault rule has the ID"):
        lab("remove", str(first.id))
    lab("reset")
    assert mirror.rules() == ()


def test_requests_command_shows_fetched_files(lab: Lab, curl: Callable[..., CommandResult]) -> None:
    assert "No request since" in lab("requests")
    curl("github.com/runc/runc.amd64")
    assert lab("requests").split() == ["REQUESTS", "BYTES", "PATH", "1", "5", "github.com/runc/runc.amd64"]
    assert json.loads(lab("requests", "--json")) == [
        {"path": "github.com/runc/runc.amd64", "requests": 1, "bytes": 5}
    ]


def test_invalid_option_value_is_refused(lab: Lab, mirror: MirrorClient) -> None:
    for words in (("slow", "*", "--rate", "fast"), ("cut", "*", "--after", "150%"), ("stall", "*", "--hold", "0")):
        with pytest.raises(LabError):
            lab(*words)
    assert mirror.rules() == ()


def test_every_mirror_command_has_example_in_help(lab: Lab) -> None:
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert f"aks-flex-lab mirror {name}" in " ".join(lab(name, "--help").split())
