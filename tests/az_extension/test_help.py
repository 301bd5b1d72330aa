"""Applies the rules of azdev's linter for extensions to the commands that az has loaded."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.processes import run
from tests.az_extension.warm_az import python_of

if TYPE_CHECKING:
    from tests.az_extension.warm_az import WarmAz
    from tests.azure_cli import Az

DESCRIBING = Path(__file__).with_name("describe_commands.py")
VERBS = {"create", "update", "show", "list", "delete", "regenerate-token", "revoke-key", "wait", "join-command"} | {
    "release"
}
POOL_VERBS = {
    f"pool {verb}"
    for verb in ("create", "update", "show", "list", "delete", "list-revisions", "apply", "allow-revision")
}
ENROLMENT_VERBS = {
    f"pool enrolment {verb}" for verb in ("create", "list", "show", "revoke", "machines", "approve", "reject")
}
ROLLOUT_VERBS = {
    f"rollout {verb}"
    for verb in ("create", "list", "list-nodes", "show", "wait", "pause", "resume", "abort", "reverse", "approve")
} | {"rollout delete"}
LONGEST = 22  # maximum characters of an option without a shorter alias, as in azdev


@pytest.fixture(scope="module")
def table(owner: Az) -> dict[str, Any]:
    words = (python_of(owner), "-I", DESCRIBING, owner.program.parent / "packages")
    found = json.loads(run(*words, env=owner.environment).out)
    return {name.removeprefix("aks flex-node "): each for name, each in found.items()}


@pytest.fixture(scope="module")
def options(table: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(verb, each) for verb, command in table.items() for each in command["arguments"].values()]


def test_all_commands_are_registered_by_extension(table: dict[str, Any]) -> None:
    assert set(table) == VERBS | POOL_VERBS | ENROLMENT_VERBS | ROLLOUT_VERBS
    assert {each["source"] for each in table.values()} == {"az-aks-flex-node"}


def test_every_command_has_summary_and_matching_examples(table: dict[str, Any]) -> None:
    for verb, command in table.items():
        assert command["help"]["short-summary"].endswith("."), verb
        assert command["help"]["examples"], verb
        for example in command["help"]["examples"]:
            assert f"az aks flex-node {verb} " in example["text"], example
            assert not example["name"].endswith("."), example


def test_every_option_has_help_and_a_short_enough_name(options: list[tuple[str, dict[str, Any]]]) -> None:
    for verb, option in options:
        names = [str(each) for each in option["options"]]
        assert option["help"], (verb, names)
        assert all(re.fullmatch(r"--[a-z0-9-]+|-[a-z]", each) for each in names), (verb, names)
        assert min(map(len, names)) <= LONGEST, (verb, names)


def test_update_options_have_no_defaults(table: dict[str, Any]) -> None:
    set_by_us = table["update"]["arguments"]
    assert {each["default"] for each in set_by_us.values()} <= {"None", "Undefined"}


def test_only_commands_that_take_time_support_no_wait(table: dict[str, Any]) -> None:
    supporting = {verb for verb, each in table.items() if each["no_wait"]}
    assert supporting == {"create", "update", "delete", "rollout create"}
    assert table["delete"]["confirmation"]


def test_cluster_and_node_options_have_completers(table: dict[str, Any]) -> None:
    for verb, command in table.items():
        arguments = command["arguments"]
        assert arguments["cluster_name"]["completer"], verb
        unnamed = {"create", "list", "pool list", "rollout create", "rollout list"}
        assert verb in unnamed or arguments["name"]["completer"], verb


def test_tab_completion_offers_node_names(az: WarmAz, name: str) -> None:
    az.run("aks", "flex-node", "create", "-g", "edge", "--cluster", "plant", "--name", f"tab-{name}")
    line = "az aks flex-node show -g edge --cluster plant --name tab-"
    with tempfile.NamedTemporaryFile("r") as offered:
        env = {
            "_ARGCOMPLETE": "1",
            "_ARGCOMPLETE_STDOUT_FILENAME": offered.name,
            "COMP_LINE": line,
            "COMP_POINT": str(len(line)),
            "_ARGCOMPLETE_IFS": "\n",
        }
        az.run(env=env, check=False)
        assert f"tab-{name}" in offered.read()


def test_group_help_lists_all_commands(az: WarmAz) -> None:
    said = az.run("aks", "flex-node", "--help").out
    assert all(f"    {verb} " in said for verb in VERBS)
    assert "Manage machines outside Azure that are nodes of an AKS cluster." in said
