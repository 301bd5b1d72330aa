"""`aks-flex-lab mirror …` against a running mirror."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from aks_flex_node.lab.cli.mirror import app
from aks_flex_node.lab.errors import LabError
from aks_flex_node.lab.layout import Layout
from aks_flex_node.lab.mirror.sizes import Amount
from aks_flex_node.lab.mirror.switches import Checksum, Corrupt, Cut, Slow, Stall, Status, Switch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_node.lab.mirror.client import Mirror
    from aks_flex_node.lab.processes import Result

    Lab = Callable[..., str]


@pytest.fixture
def lab(mirror: Mirror, tmp_path: Path) -> Lab:
    """Type a command; what it said. The mirror stands where the lab would have put it."""
    layout = Layout("test", tmp_path, tmp_path / "cache")
    room = layout.parts / "mirror"
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
        (("slow", "*", "--rate", "200k"), Slow(204800)),
        (("stall", "*"), Stall()),
        (("stall", "*", "--after", "10M", "--hold", "5"), Stall(Amount(10 << 20), 5)),
        (("cut", "*"), Cut()),
        (("cut", "*", "--after", "25%"), Cut(Amount(percent=25))),
        (("corrupt", "*"), Corrupt()),
        (("missing", "*"), Status(404)),
        (("unavailable", "*"), Status(503)),
        (("unavailable", "*", "--retry-after", "3"), Status(503, 3)),
        (("checksum", "*"), Checksum()),
    ],
)
def test_each_command_switches_its_fault_on(lab: Lab, mirror: Mirror, words: tuple[str, ...], switch: Switch) -> None:
    lab(*words, "--times", "2")
    (rule,) = mirror.rules()
    assert (rule.glob, rule.switch, rule.times) == ("*", switch, 2)


def test_a_switch_says_what_it_covers_and_asks_when_that_is_nothing(lab: Lab) -> None:
    assert "cut after=50% for 1 file of the mirror." in lab("cut", "dl.k8s.io/v1/kubelet")
    assert "Is the pattern right?" in lab("corrupt", "dl.k8s.io/v1/kublet")


def test_the_list_shows_rules_and_hits(lab: Lab, mirror: Mirror, curl: Callable[..., Result]) -> None:
    assert "No switch is on" in lab("list")
    rule = mirror.add("github.com/*", Status(503, 1), times=3).rule
    curl("github.com/runc/runc.amd64")
    assert lab("list").split()[5:] == [str(rule.id), "status", "code=503", "retry_after=1", "github.com/*", "1", "3"]
    assert json.loads(lab("list", "--json"))[0]["hits"] == 1


def test_one_is_removed_and_all_are_reset(lab: Lab, mirror: Mirror) -> None:
    first = mirror.add("*", Corrupt()).rule
    mirror.add("*", Cut())
    lab("remove", str(first.id))
    assert [rule.switch for rule in mirror.rules()] == [Cut()]
    with pytest.raises(LabError, match="no switch with the ID"):
        lab("remove", str(first.id))
    lab("reset")
    assert mirror.rules() == ()


def test_what_was_fetched_is_shown(lab: Lab, curl: Callable[..., Result]) -> None:
    assert "Nothing was fetched" in lab("requests")
    curl("github.com/runc/runc.amd64")
    assert lab("requests").split() == ["REQUESTS", "BYTES", "PATH", "1", "5", "github.com/runc/runc.amd64"]
    assert json.loads(lab("requests", "--json")) == [
        {"path": "github.com/runc/runc.amd64", "requests": 1, "bytes": 5}
    ]


def test_what_cannot_be_read_is_named(lab: Lab, mirror: Mirror) -> None:
    for words in (("slow", "*", "--rate", "fast"), ("cut", "*", "--after", "150%"), ("stall", "*", "--hold", "0")):
        with pytest.raises(LabError):
            lab(*words)
    assert mirror.rules() == ()


def test_every_command_shows_an_example(lab: Lab) -> None:
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert f"aks-flex-lab mirror {name}" in " ".join(lab(name, "--help").split())
