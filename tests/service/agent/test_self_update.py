"""Tests of self-update: trial, health check, rollback, and power cuts at any action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent import self_update
from aks_flex_node.agent.components.catalog import AGENT_COMPONENTS
from aks_flex_node.agent.components.service import UNIT_NAME, release
from aks_flex_node.agent.job_records.job_result import JobStatus
from aks_flex_node.agent.paths import AGENT_FLOOR
from aks_flex_node.agent.policy import POLICY_FILE
from aks_flex_node.agent.program_inventory import unused_versions
from aks_flex_node.agent.self_update import failure_reason, is_due
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import MakeDirectory, StopUnit, WriteFile
from tests.remedies.catalogue import advice, command
from tests.service.agent.self_update_harness import DEAD, GOOD, KILLED_ONCE, MUTE, Bench, Cut, script

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_node.agent.job_records.job_result import JobResult


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    made = Bench(tmp_path, {"0.2.0": script("0.2.0", GOOD), "0.3.0": script("0.3.0", GOOD)})
    made.install()
    assert made.running == made.home
    return made


def program(bench: Bench, version: str) -> str:
    return f"{bench.root}/opt/flex/agent/{version}/bin/aks-flex-node"


def files(bench: Bench) -> list[str]:
    """Returns the existing files of a trial."""
    paths = [release.trial_file(bench.config), release.failed_file(bench.config)]
    return [path.rpartition("/")[2] for path in paths if bench.stat(path)]


def failed(bench: Bench, version: str, reason: str) -> JobResult:
    """Orders a version that must not be installed."""
    bench.settings(version)
    outcome = bench.renew()
    assert (outcome.result, outcome.reason) == (JobStatus.FAILED, reason)
    assert bench.running == bench.home
    return outcome


def test_self_update_to_working_version_succeeds(bench: Bench) -> None:
    bench.settings("0.2.0")
    assert is_due(bench, bench.config)

    outcome = bench.renew()

    assert (outcome.result, outcome.message) == (JobStatus.DONE, "The agent was updated to version 0.2.0.")
    assert (bench.running, files(bench), bench.as_wanted) == (program(bench, "0.2.0"), [], True)
    assert not is_due(bench, bench.config)
    assert bench.renew().result == JobStatus.DONE


def test_self_update_keeps_previous_version_as_unused(bench: Bench) -> None:
    for version in ("0.2.0", "0.3.0"):
        bench.settings(version)
        bench.renew()
    assert bench.running == program(bench, "0.3.0")
    assert unused_versions(bench.engine()) == [release.release_path(bench.config).replace("0.3.0", "0.2.0")]


@pytest.mark.parametrize("first", ["", "0.2.0"])
@pytest.mark.parametrize(
    ("follows", "why"),
    [
        (DEAD, "It was started 3 times. It failed to start: no such module"),
        (MUTE, "It did not poll the provider within 180 s."),
    ],
)
def test_self_update_to_failing_version_rolls_back(bench: Bench, first: str, follows: str, why: str) -> None:
    bench.settings(first)
    bench.renew()
    before = bench.running
    bench.versions["0.3.0"] = script("0.3.0", follows)
    bench.settings("0.3.0")

    outcome = bench.renew()

    assert (outcome.result, outcome.reason) == (JobStatus.ROLLED_BACK, "AgentUpdateFailed")
    assert why in outcome.message
    assert (bench.running, files(bench)) == (before, ["agent-failed"])
    assert outcome.message == failure_reason(bench, bench.config)


def test_version_without_a_release_is_named_with_what_to_do(bench: Bench) -> None:
    outcome = failed(bench, "0.9.0", "artifact-not-found")

    assert outcome.message == (
        "Agent version 0.9.0 has no release for this machine: https://releases.example/v0.9.0/agent.tar.gz was not "
        "found (status 404). The present version keeps running."
    )
    assert "`aks-flex-rp node update --name NODE --agent-version ''`" in outcome.hint
    assert failure_reason(bench, bench.config) == "", "a later release is installed"


def test_start_that_was_killed_does_not_bar_the_version(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.2.0", KILLED_ONCE)
    bench.settings("0.2.0")

    outcome = bench.renew()

    assert (outcome.result, failure_reason(bench, bench.config)) == (JobStatus.DONE, "")
    assert (bench.running, files(bench)) == (program(bench, "0.2.0"), [])


def test_service_that_a_person_stopped_is_not_started_by_an_update(bench: Bench) -> None:
    bench.settings("0.2.0")
    bench.apply(StopUnit(UNIT_NAME))

    outcome = bench.renew()

    assert (outcome.result, files(bench)) == (JobStatus.DONE, [])
    assert bench.unit(UNIT_NAME).is_stopped
    assert is_due(bench, bench.config), "it is updated when it is started again"


def test_service_stopped_during_a_trial_does_not_bar_the_version(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.2.0", MUTE)
    bench.settings("0.2.0")

    outcome = bench.renew(sleep=lambda _: bench.apply(StopUnit(UNIT_NAME)))

    assert (outcome.result, failure_reason(bench, bench.config)) == (JobStatus.DONE, "")
    assert bench.unit(UNIT_NAME).is_stopped
    assert files(bench) == ["agent-trial"], "the launch script continues the trial"


@pytest.mark.remedy("agent-downgrade-refused")
def test_older_version_is_refused_until_a_person_permits_it(bench: Bench) -> None:
    """A compromised provider orders a signed, old release with known vulnerabilities."""
    self_update.raise_floor(bench, "0.3.0")
    self_update.raise_floor(bench, "0.1.0")
    failed(bench, "0.2.0", "agent-downgrade-refused")
    assert bench.stat(program(bench, "0.2.0")) is None
    assert not is_due(bench, bench.config), "the order is not tried again"

    permit = command("agent-downgrade-refused", "aks-flex-node agent-floor --set", VERSION="0.2.0")
    assert permit[1:] == ["agent-floor", "--set", "0.2.0"]
    self_update.lower_floor(bench, bench.config, permit[-1])  # what the command calls
    assert bench.renew().result is JobStatus.DONE
    assert bench.running == program(bench, "0.2.0")


def test_version_that_the_policy_forbids_is_not_installed(bench: Bench) -> None:
    """The administrator writes the policy after the provider's order has been accepted."""
    bench.apply(WriteFile(POLICY_FILE, b"forbid: [agent.version]\n"))
    failed(bench, "0.2.0", "refused-by-policy")
    assert bench.stat(program(bench, "0.2.0")) is None


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"../../x"])
def test_damaged_floor_permits_updates_and_is_written_again(bench: Bench, content: bytes) -> None:
    bench.apply(WriteFile(AGENT_FLOOR, content))
    assert self_update.read_floor(bench) == ""
    self_update.raise_floor(bench, "0.3.0")
    assert self_update.read_floor(bench) == "0.3.0"


def test_failed_version_is_retried_only_with_new_config(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.2.0", DEAD)
    bench.settings("0.2.0")
    bench.renew()

    assert not is_due(bench, bench.config)
    assert bench.renew().result == JobStatus.FAILED
    bench.set_configuration("8")
    assert failure_reason(bench, bench.config) == ""
    assert is_due(bench, bench.config)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (script("0.1.9", GOOD), "`version` printed: 0.1.9"),
        (b"#!/bin/sh\necho 'no interpreter' >&2; exit 1\n", "`version` printed: no interpreter"),
        (b"\x7fELF", "`version` printed: "),
    ],
)
def test_program_with_wrong_version_output_is_never_started(bench: Bench, content: bytes, why: str) -> None:
    bench.versions["0.2.0"] = content

    assert why in failed(bench, "0.2.0", "agent-update-rejected").message
    assert bench.stat(release.current_link(bench.config)) is None
    assert not is_due(bench, bench.config)


@pytest.mark.remedy("agent-update-rejected")
def test_rejected_agent_version_is_replaced_by_a_working_one(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.1.9", GOOD)
    bench.settings("0.2.0")
    assert bench.renew().reason == "agent-update-rejected"

    advice("agent-update-rejected", "Set `agent.version` to a working version")
    bench.settings("0.3.0")
    bench.set_configuration("8")
    assert bench.renew().result == JobStatus.DONE
    advice("agent-update-rejected", "set `agent.url` and `agent.sha256` to the correct archive")
    bench.versions["0.2.0"] = script("0.2.0", GOOD)
    correct: dict[str, object] = {
        "agent.url": "https://mirror.example/agent.tar.gz",
        "agent.sha256": {"agent.tar.gz": "ab" * 32},
    }
    bench.settings("0.2.0", correct)
    bench.set_configuration("9")
    assert bench.renew().result == JobStatus.DONE
    assert bench.running == program(bench, "0.2.0")


@pytest.mark.parametrize(("answer", "started"), [("exit 2", False), ("exit 1", True), ("exit 0", True)])
def test_self_update_requires_working_kubelet_token_command(bench: Bench, answer: str, started: bool) -> None:
    answers = f"config) exit 0;;\ntoken) {answer};;".encode()
    bench.versions["0.2.0"] = script("0.2.0", GOOD).replace(b"config) exit 0;;", answers)
    bench.settings("0.2.0")
    bench.notes.apply(MakeDirectory("/var/lib/kubelet"))
    bench.notes.apply(WriteFile("/var/lib/kubelet/identity.json", b"{}", 0o600))

    outcome = bench.renew()

    assert (outcome.result == JobStatus.DONE) == started
    assert ("cannot issue a token for the kubelet" in outcome.message) != started


def test_launcher_rolls_back_after_three_failed_starts(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.2.0", DEAD)
    bench.settings("0.2.0")
    bench.repair()
    assert bench.running == bench.home
    self_update.begin_trial(bench, bench.config)
    for _ in range(3):
        with pytest.raises(MachineError):
            bench.start()
    assert self_update.read_trial(bench, bench.config)

    bench.start()

    assert (bench.running, files(bench)) == (bench.home, ["agent-failed"])
    assert "started 3 times" in failure_reason(bench, bench.config)


def test_launcher_starts_packaged_agent_when_version_is_missing(bench: Bench) -> None:
    bench.settings("0.2.0")
    bench.renew()
    (bench.root / "opt/flex/agent/0.2.0/bin/aks-flex-node").unlink()
    bench.start()
    assert bench.running == bench.home


@pytest.mark.parametrize("text", ["", "nonsense", "a\nb\nc\nd\n", "\n\n\n\n"])
def test_unreadable_trial_file_does_not_prevent_start(bench: Bench, text: str) -> None:
    bench.settings("0.2.0")
    bench.renew()
    (bench.root / "data/flex/agent-trial").write_text(text)
    bench.start()
    assert bench.running == program(bench, "0.2.0")


def test_interrupted_trial_is_resumed_and_rolled_back(bench: Bench) -> None:
    bench.versions["0.2.0"] = script("0.2.0", MUTE)
    bench.settings("0.2.0")
    bench.repair()
    self_update.begin_trial(bench, bench.config)
    bench.start()
    assert bench.running == program(bench, "0.2.0")

    assert bench.renew().result == JobStatus.ROLLED_BACK
    assert bench.running == bench.home


def test_trial_is_not_confirmed_by_another_agent_version(bench: Bench) -> None:
    bench.settings("0.2.0")
    bench.repair()
    self_update.begin_trial(bench, bench.config)
    self_update.confirm_trial(bench, bench.config, f"{bench.root}/home/lib/aks_flex_node")
    assert files(bench) == ["agent-trial"]


@pytest.mark.parametrize("version", ["", "0.2.0"])
def test_removing_self_updated_agent_leaves_only_ledgers(bench: Bench, version: str) -> None:
    bench.settings("0.2.0")
    bench.renew()
    bench.settings(version)
    bench.repair()
    engine = bench.engine()
    if version:
        for component in reversed(AGENT_COMPONENTS):
            engine.remove(component, pytest.fail)
    assert bench.list_dir(f"{bench.root}/opt/flex") == ("ledger.json",)
    assert bench.list_dir(f"{bench.root}/data/flex") == ("ledger.json",)
    assert version or bench.running == bench.home


@pytest.mark.parametrize("cut_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("first", ["", "0.2.0"])
@pytest.mark.parametrize("follows", [GOOD, DEAD, MUTE], ids=["good", "dead", "mute"])
def test_self_update_interrupted_at_any_action_leaves_a_running_agent(
    tmp_path: Path, first: str, follows: str, cut_after: bool
) -> None:
    """It runs the desired version if that works, otherwise the previous one."""
    for number in range(60):
        (tmp_path / str(number)).mkdir()
        bench = Bench(tmp_path / str(number), {"0.2.0": script("0.2.0", GOOD), "0.3.0": script("0.3.0", follows)})
        bench.install()
        bench.settings(first)
        bench.renew()
        before = bench.running
        bench.settings("0.3.0")
        bench.cut_at, bench.cut_after = number, cut_after
        try:
            bench.renew()
        except Cut:
            bench.running = ""
        else:
            break

        bench.boot()
        assert bench.running, f"cut at action {number}"
        bench.repair()
        bench.boot()
        bench.renew()
        bench.boot()
        assert bench.running == (program(bench, "0.3.0") if follows == GOOD else before), f"cut at action {number}"
    else:
        pytest.fail("it never came to its end")
    assert number > 8
