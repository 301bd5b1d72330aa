"""Roll-outs of a provider that is killed, or whose database restarts, at its writes: they end as if nothing had
happened, and nothing is done twice. `tests/long` has the complete sweeps.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

from tests.service.rp.rollouts.crash_runs import CrashRuns, sweep_kills, sweep_restarts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.store.servers import PostgresServer


@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
def test_roll_out_survives_sigkill_at_its_writes(crash_runs: CrashRuns, is_bad: bool) -> None:
    """Every write is hit on one of the stores."""
    first = 1 if crash_runs.is_sqlite else 2
    sweep_kills(crash_runs, check_end, is_bad=is_bad, first=first, every=2)


@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
def test_roll_out_survives_restarts_of_postgres(postgres: PostgresServer, tmp_path: Path, is_bad: bool) -> None:
    def restart() -> None:
        postgres.stop(signal.SIGQUIT)
        postgres.start()

    with CrashRuns(tmp_path / "state", postgres.new_database()) as runs:
        sweep_restarts(runs, check_end, restart, is_bad=is_bad, first=4, every=17)


def check_end(found: dict[str, Any], *, is_bad: bool) -> None:
    if is_bad:
        assert found["state"] == "Reversed"
        assert found["reason"] == "n1: containerd does not start."
        assert found["given"] == [["n0", 2], ["n1", 2], ["n0", 1], ["n1", 1]]  # and no node of the last wave
        assert (found["stable"], found["barred"]) == (1, [2])
    else:
        assert found["state"] == "Succeeded"
        assert sorted(found["given"]) == [["n0", 2], ["n1", 2], ["n2", 2], ["n3", 2]]
        assert (found["stable"], found["barred"]) == (2, [])
    assert len(set(found["revisions"].values())) == 1
    assert found["staged"] == found["waitsFor"] == []
