"""A replica that only steps roll-outs, as a process that tests kill and pause.

python -m tests.service.rp.rollouts.stepping_replica STATE DATABASE

Prints the holder of its lease, which is shorter than that of the service.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from pathlib import Path

from aks_flex_rp.rollouts import controller
from aks_flex_rp.rollouts.controller import run_controller
from tests.service.rp.rollouts.rollout_world import Clocks, replica

LEASE_SECONDS = 2.0


class RealClocks(Clocks):
    def __getattribute__(self, name: str) -> float:
        return {"wall": time.time, "steady": time.monotonic}[name]()


async def main(room: str, database: str) -> None:
    logging.basicConfig(level=logging.INFO)
    controller.LEASE_SECONDS = LEASE_SECONDS
    controller.IDLE_SECONDS = controller.STEP_SECONDS = 0.05
    async with replica(Path(room), database, RealClocks()) as here:
        print(here.controller._holder, flush=True)
        await run_controller(here.controller)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
