"""Kills the agent, or cuts the power, at a random moment of a pool node's life: it ends in the right state."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from aks_flex_lab.versions import NodeVersions
from tests.pool_node import HOME
from tests.wait import until, until_named

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from aks_flex_lab.snapshots import Snapshot
    from tests.pool_node import PoolNode

OLDER, NEWER, BROKEN = "1.35.4", NodeVersions().kubernetes, "1.35.97"
# Approximate seconds that each takes.
JOIN_SECONDS, UPDATE_SECONDS, ROLLBACK_SECONDS, REMOVAL_SECONDS = 20.0, 15.0, 15.0, 20.0
POLL_SECONDS = 3.0
SETTLE_SECONDS = 420.0
JOIN_UNIT = "pool-join.service"
UNITS = ("aks-flex-node.service", "aks-flex-node-job.service", JOIN_UNIT)  # the daemon, its job, and a join


def kill_agent(node: PoolNode) -> None:
    """Kills the processes of the agent that run; systemd starts the daemon again."""
    for unit in UNITS:
        node.machine.run("systemctl", "kill", "--signal=KILL", unit, check=False)


def cut_power(node: PoolNode) -> None:
    node.machine.power_cycle()
    until_named(node.machine, "api.flex.internal")


DISRUPTIONS = (kill_agent, cut_power)


def disrupt(node: PoolNode, chance: random.Random, during: str, longest: float) -> None:
    """Waits for a random moment, then kills the agent or cuts the power."""
    how, moment = chance.choice(DISRUPTIONS), chance.uniform(0, longest)
    print(f"{node.name}: {how.__name__} {moment:.1f} s into the {during}", flush=True)
    time.sleep(moment)
    how(node)


def interrupted_join(node: PoolNode, chance: random.Random) -> None:
    """Interrupts a join; the same command then completes it."""
    unit = ("systemd-run", f"--unit={JOIN_UNIT}", "--collect", "--wait", "--quiet")
    join = (*unit, "aks-flex-node", *node.join_command)
    with ThreadPoolExecutor(1) as lane:
        first = lane.submit(node.machine.run, *join, check=False, timeout=600)
        disrupt(node, chance, "join", JOIN_SECONDS)
        first.result()
    node.join()
    until(lambda: node.is_ready and node.stored_version == node.etag, "the machine is a node")
    assert node.version == OLDER
    assert node.is_clean


def interrupted_rollback(node: PoolNode, chance: random.Random) -> None:
    """Interrupts the update to a version that does not work; the node returns to the earlier one."""
    before = node.version
    etag = released_change(node, BROKEN)
    disrupt(node, chance, "rollback", ROLLBACK_SECONDS)
    wait_settled(node, lambda: node.pending.get("reason") == "service-failed", "the update is rolled back")
    assert node.pending["configVersion"] == etag
    wait_settled(node, lambda: node.is_ready, "the Node is registered again")
    assert node.version == before


def interrupted_upgrade(node: PoolNode, chance: random.Random) -> None:
    """Interrupts an upgrade after AKS has deleted the Node; it is completed."""
    uid = node.uid
    etag = released_change(node, NEWER)
    disrupt(node, chance, "upgrade", UPDATE_SECONDS)
    wait_settled(node, lambda: node.stored_version == etag and not node.pending, "the upgrade is complete")
    wait_settled(node, lambda: node.is_ready and node.version == NEWER, "the Node has the new version")
    assert node.uid != uid
    until(lambda: node.is_clean, "the machine is as it is configured")


def interrupted_removal(node: PoolNode, chance: random.Random, before: Snapshot) -> None:
    """Interrupts the removal after the Machine was deleted; it is completed, and leaves nothing."""
    node.pools.delete_machines(node.pool, [node.name])
    disrupt(node, chance, "removal", REMOVAL_SECONDS)
    wait_settled(node, lambda: not node.has(HOME), "the machine leaves")
    wait_settled(node, lambda: node.uid == "", "AKS deletes the Node")
    until(lambda: node.left_over(before) == [], "nothing is left on the machine", 60)


def released_change(node: PoolNode, version: str) -> str:
    """Changes the version of the Machine and deletes the Node when the agent waits for that, as AKS does."""
    etag = node.change(orchestratorVersion=version)
    waiting = {"reason": "WaitingForNodeDeletion", "configVersion": etag}
    until(lambda: waiting.items() <= node.pending.items(), "the change waits for AKS")
    node.delete_node()
    return etag


def wait_settled(node: PoolNode, true: Callable[[], bool], what: str) -> None:
    until(true, f"{node.name}: {what}", SETTLE_SECONDS)
