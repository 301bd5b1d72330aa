"""Tests of the text of `rollout show`."""

from __future__ import annotations

from typing import Any

from aks_flex_rp.cli.rollout_commands import MAX_FAILED, format_rollout

WAVES = [
    {"wave": 1, "nodes": 1, "updated": 1},
    {"wave": 2, "nodes": 9, "updated": 3, "failed": 1, "pending": 5, "offline": 2},
]
RESULTS = [
    {
        "wave": 1,
        "gate": "smoke-test",
        "state": "Passed",
        "startedAt": "2026-05-01T08:12:00Z",
        "answeredAt": "2026-05-01T08:12:40Z",
        "message": "The Job succeeded\non 1 node.\x1b[2J",
    },
    {"wave": 1, "gate": "manager", "state": "Running", "startedAt": "2026-05-01T08:12:40Z"},
]
ROLLOUT: dict[str, Any] = {
    "name": "may",
    "id": "ID",
    "properties": {
        "state": "Gates",
        "paused": True,
        "stateSince": "2026-05-01T08:12:00Z",
        "startedAt": "2026-05-01T08:00:00Z",
        "createdBy": "operator@contoso.example",
        "revision": 3,
        "failures": 1,
        "maxFailures": 2,
        "onFailure": "reverse",
        "waitsFor": ["Gate manager: an approval."],
        "waveProgress": WAVES,
        "gateResults": RESULTS,
    },
}
FAILED = {"name": "edge-7", "wave": 2, "state": "Failed", "cause": "The kubelet\x1b[31m does not start."}


def test_picture_of_a_rollout_has_waves_gates_and_failed_nodes() -> None:
    assert format_rollout(ROLLOUT, [FAILED], "more").splitlines() == [
        "name       may",
        "id         ID",
        "state      Gates (paused), since 2026-05-01 08:12:00 UTC",
        "waits for  Gate manager: an approval.",
        "revision   3",
        "failures   1 (limit 2, then reverse)",
        "started    2026-05-01 08:00:00 UTC by operator@contoso.example",
        "wave 1     1 node: 1 updated",
        "wave 2     9 nodes: 3 updated, 5 pending, 1 failed (2 offline)",
        "",
        "WAVE  GATE        STATE    STARTED              ANSWERED             MESSAGE",
        "1     smoke-test  Passed   2026-05-01 08:12:00  2026-05-01 08:12:40  The Job succeeded on 1 node.[2J",
        "1     manager     Running  2026-05-01 08:12:40  -                    -",
        "",
        "failed nodes",
        "  edge-7 (wave 2, Failed): The kubelet[31m does not start.",
    ]


def test_many_failed_nodes_are_cut_with_the_command_for_all() -> None:
    lines = format_rollout(ROLLOUT, [FAILED] * (MAX_FAILED + 1), "aks-flex-rp rollout nodes").splitlines()

    assert lines[-1] == "  and others: `aks-flex-rp rollout nodes`"
    assert sum("edge-7" in line for line in lines) == MAX_FAILED
