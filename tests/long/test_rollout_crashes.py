"""Complete sweeps of interrupted roll-outs: the provider is killed, or PostgreSQL restarts, at each write."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.service.rp.rollouts.conftest import crash_runs, database, postgres
from tests.service.rp.rollouts.crash_runs import CrashRuns, sweep_kills, sweep_restarts
from tests.service.rp.rollouts.test_rollout_crashes import check_end

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.rp.store.servers import PostgresServer

_ = crash_runs, database, postgres  # fixtures


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
def test_roll_out_survives_sigkill_at_every_write(crash_runs: CrashRuns, is_bad: bool, after: bool) -> None:
    sweep_kills(crash_runs, check_end, is_bad=is_bad, after=after)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("is_bad", [False, True], ids=["good", "bad"])
def test_roll_out_survives_restart_of_postgres_at_every_write(
    postgres: PostgresServer, tmp_path: Path, is_bad: bool
) -> None:
    def restart() -> None:
        postgres.stop(signal.SIGQUIT)
        postgres.start()

    with CrashRuns(tmp_path / "state", postgres.new_database()) as runs:
        sweep_restarts(runs, check_end, restart, is_bad=is_bad)
