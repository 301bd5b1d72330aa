"""Tests of the texts about a roll-out."""

from __future__ import annotations

from typing import Any

from aks_flex_node.api.rollout_summary import end_text, has_ended, progress_text, wave_text

COUNTS = ("pending", "updating", "updated", "failed", "reversing", "reversed", "gone", "offline")


def wave(number: int, nodes: int, **counts: int) -> dict[str, Any]:
    return {"wave": number, "nodes": nodes, **dict.fromkeys(COUNTS, 0), **counts}


def rollout(state: str, **properties: Any) -> dict[str, Any]:
    waves = [wave(1, 1, updated=1), wave(2, 9, updating=2, updated=3, pending=4, offline=1)]
    return {
        "name": "may",
        "properties": {"state": state, "wave": 2, "revision": 3, "waveProgress": waves, **properties},
    }


def test_counts_of_a_wave_have_no_zeros() -> None:
    assert wave_text(wave(1, 1, updated=1)) == "1 node: 1 updated"
    assert wave_text(wave(2, 9, pending=4, updated=5, offline=1)) == "9 nodes: 5 updated, 4 pending (1 offline)"
    assert wave_text(wave(2, 0)) == "0 nodes: none left"


def test_progress_is_one_line_with_wave_counts_gates_and_waits() -> None:
    results = [
        {"wave": 1, "gate": "smoke-test", "state": "Passed", "message": "Old."},
        {"wave": 2, "gate": "smoke-test", "state": "Passed", "message": "9 Jobs succeeded.\n\x1b[31m"},
        {"wave": 2, "gate": "manager", "state": "Running"},
    ]
    found = rollout("Gates", gateResults=results, waitsFor=["An approval of gate manager."], paused=True)

    assert progress_text(found["properties"]) == (
        "Gates (paused); wave 2 of 2: 9 nodes: 3 updated, 2 updating, 4 pending (1 offline); "
        "gate smoke-test Passed: 9 Jobs succeeded. [31m; gate manager Running; waits for An approval of gate manager"
    )


def test_progress_of_a_reversal_counts_all_waves() -> None:
    waves = [wave(1, 1, reversing=1), wave(2, 9, failed=1, reversed=2, pending=6)]

    text = progress_text(rollout("Reversing", waveProgress=waves)["properties"])

    assert text == "Reversing; 10 nodes: 6 pending, 1 failed, 1 reversing, 2 reversed"


def test_nodes_that_an_ended_rollout_left_alone_are_not_pending() -> None:
    waves = [wave(1, 1, reversed=1), wave(2, 9, pending=9)]

    text = progress_text(rollout("Reversed", waveProgress=waves)["properties"])

    assert text == "Reversed; 10 nodes: 9 not updated, 1 reversed"
    assert wave_text(waves[1], "Halted") == "9 nodes: 9 not updated"
    assert wave_text(waves[1], "Succeeded") == "9 nodes: 9 pending"


def test_a_rollout_without_nodes_says_so() -> None:
    assert end_text(rollout("Succeeded", waveProgress=[])) == (
        "The roll-out may changed nothing: no node of the pool needs revision 3"
    )
    assert end_text(rollout("Succeeded", waveProgress=[], nodeSelector={"site": "oslo"})) == (
        "The roll-out may changed nothing: no node with the labels of its selector needs revision 3"
    )


def test_end_says_how_many_nodes_or_why() -> None:
    waves = [wave(1, 1, updated=1), wave(2, 9, updated=8, pending=1, offline=1)]

    assert end_text(rollout("Succeeded", waveProgress=waves)) == (
        "The roll-out may succeeded: 9 of 10 nodes on revision 3, 1 offline"
    )
    assert end_text(rollout("Reversed", reason="1 node failed: edge-1.")) == (
        "The roll-out may ended as Reversed: 1 node failed: edge-1"
    )


def test_only_final_states_have_ended() -> None:
    states = ("Running", "Soaking", "Gates", "Reversing", "Succeeded", "Halted", "Reversed", "Aborted")

    assert [state for state in states if has_ended(rollout(state))] == [*states[4:]]
