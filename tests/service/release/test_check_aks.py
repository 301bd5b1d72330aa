"""Tests of scripts/check-aks with stand-ins for `az` and the agent: what it checks, and that it reports failures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from aks_flex_lab.processes import run

if TYPE_CHECKING:
    from aks_flex_lab.processes import CommandResult

SCRIPT = Path(__file__).parents[3] / "scripts" / "check-aks"
POOL = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ContainerService/managedClusters/c/agentPools/edge"
AZ = """#!/bin/sh
echo "az $*" >>"$LOG"
case "$*" in
    *"cloud show"*) echo https://management.example/ ;;
    *properties.type*) echo "${POOL_TYPE:-FlexNodes}" ;;
    *listBootstrapData*) echo '{"azure": {"bootstrapToken": {"token": "abcdef.0123456789abcdef"}}}' ;;
    *provisioningState*) echo Succeeded ;;
    *nodeName*) echo edge-1 ;;
    *eTag*) echo "${ETAG:-e1}" ;;
    *"--query name"*) [ -e "$AKS_FLEX_NODE_STATE" ] ;;
esac
"""
AGENT = """#!/bin/sh
echo "aks-flex-node $*" >>"$LOG"
[ "$1" != unbootstrap ] || rm -rf "$AKS_FLEX_NODE_STATE"
[ "$1" != config ] || cat "$4" >>"$LOG.seen"
"""


class Check(Protocol):
    def __call__(self, *words: str, **env: str) -> tuple[CommandResult, str]: ...


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Returns a function that runs the script, and returns its result and the log of the stand-ins."""
    programs, state, log = tmp_path / "bin", tmp_path / "state", tmp_path / "log"
    programs.mkdir()
    state.mkdir()
    for name, text in (("az", AZ), ("aks-flex-node", AGENT), ("systemctl", "#!/bin/sh\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (state / "state.json").write_text(json.dumps({"node": "edge-1"}))
    (state / "aks-machine.json").write_text(json.dumps({"name": "edge-1"}))
    (state / "config-version.txt").write_text("e1\n")
    (state / "current-config.json").write_text('{"config": {}}')
    log.touch()

    def call(*words: str, **env: str) -> tuple[CommandResult, str]:
        path = f"{programs}:/usr/bin:/bin"
        settings = {"PATH": path, "LOG": str(log), "AKS_FLEX_NODE_STATE": str(state), "TMPDIR": str(tmp_path), **env}
        words = ("env", "-i", *(f"{key}={value}" for key, value in settings.items()), str(SCRIPT), *words)
        return run(*words, check=False), log.read_text()

    return call


def test_joined_machine_passes_all_checks(check: Check, tmp_path: Path) -> None:
    done, log = check("--pool", POOL, "--join", "--config", "/root/own.json")
    assert done.ok, done.out
    assert "FAIL" not in done.out
    assert done.out.endswith(" passed, 0 failed.\n")
    assert f"aks-flex-node agent --aks-pool {POOL} --config /root/own.json" in log
    assert f"--url https://management.example{POOL}/listBootstrapData?api-version=2026-08-02-preview" in log
    assert "abcdef.0123456789abcdef" not in done.out + done.err + log
    assert "abcdef.0123456789abcdef" in (tmp_path / "log.seen").read_text()
    assert not list(tmp_path.glob("tmp.*")), "the file with the token is removed"


@pytest.mark.parametrize(
    ("env", "title"),
    [
        ({"POOL_TYPE": "VirtualMachineScaleSets"}, "the pool is of the type FlexNodes"),
        ({"ETAG": "e2"}, "the node has the newest settings of the Machine"),
    ],
)
def test_failed_check_is_named_and_the_script_fails(check: Check, env: dict[str, str], title: str) -> None:
    done, _ = check("--pool", POOL, **env)
    assert not done.ok
    assert f"FAIL  {title}\n" in done.out
    assert " 1 failed." in done.out


def test_dry_run_prints_commands_and_runs_none(check: Check) -> None:
    done, log = check("--pool", POOL, "--create", "--join", "--leave", "--dry-run")
    assert done.ok
    assert log == ""
    for words in ("--vm-set-type FlexNodes", "listBootstrapData", "agent --aks-pool", "unbootstrap --yes"):
        assert words in done.out


@pytest.mark.parametrize("words", [(), ("--pool", "edge"), ("--pool", POOL, "--now")])
def test_wrong_options_print_the_usage(check: Check, words: tuple[str, ...]) -> None:
    done, log = check(*words)
    assert done.code == 2
    assert "usage: scripts/check-aks --pool ID" in done.err
    assert log == ""


def test_script_passes_shellcheck() -> None:
    assert shutil.which("shellcheck"), "shellcheck is not installed; `make test` installs it."
    assert run("shellcheck", SCRIPT, check=False).out == ""
