"""Short texts about a roll-out (its state, waves and gates), and how to follow one until it ends.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it and of `node_summary`. It
imports only that one, by its place, and the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .node_summary import printable

if TYPE_CHECKING:
    from collections.abc import Callable

Document = dict[str, Any]

INTERVAL_SECONDS = 2.0
MAX_SILENCE_SECONDS = 300.0  # how long a service that has answered may be unavailable, for example while it restarts
SUCCEEDED = "Succeeded"
ENDED = frozenset({SUCCEEDED, "Halted", "Reversed", "Aborted"})
COUNTS = {
    **{name: name for name in ("updated", "updating", "pending", "failed", "reversing", "reversed")},
    "notReversed": "not reversed",
    "gone": "gone",
}
NODE_STATES = tuple(name[0].upper() + name[1:] for name in COUNTS)
UNFINISHED = ENDED - {SUCCEEDED}  # nodes that are pending then stay as they are
MAX_WAITS = 3  # that a line shows


def has_ended(rollout: Document) -> bool:
    return rollout["properties"]["state"] in ENDED


def state_text(properties: Document) -> str:
    return f"{properties['state']} (paused)" if properties.get("paused") else str(properties["state"])


def wave_text(wave: Document, state: str = "") -> str:
    """Returns the counts of a wave, for example `9 nodes: 3 updated, 2 updating, 4 pending (1 offline)`."""
    names = {**COUNTS, "pending": "not updated"} if state in UNFINISHED else COUNTS
    counts = ", ".join(f"{wave[name]} {text}" for name, text in names.items() if wave.get(name))
    offline = f" ({wave['offline']} offline)" if wave.get("offline") else ""
    return f"{count_nodes(wave['nodes'])}: {counts or 'none left'}{offline}"


def count_nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number} nodes"


def progress_text(properties: Document) -> str:
    """Returns the progress in one line: state, present wave with its counts, gates, and what the roll-out waits for.

    While nodes go back, and afterwards, the counts are those of all waves.
    """
    waves = properties.get("waveProgress", ())
    number = properties.get("wave") or 1
    texts = [state_text(properties)]
    if properties["state"] in ("Reversing", "Reversed"):
        texts.append(wave_text(total_of(waves), properties["state"]))
    elif present := [each for each in waves if each["wave"] == number]:
        texts.append(f"wave {number} of {len(waves)}: {wave_text(present[0], properties['state'])}")
    texts += [gate_text(each) for each in properties.get("gateResults", ()) if each["wave"] == number]
    if waiting := waits_for_text(properties):
        texts.append(f"waits for {waiting}")
    return "; ".join(texts)


def total_of(waves: Any) -> Document:
    names = ("nodes", "offline", *COUNTS)
    return {name: sum(each.get(name, 0) for each in waves) for name in names}


def waits_for_text(properties: Document) -> str:
    found = [printable(each).rstrip(".") for each in properties.get("waitsFor", ())]
    more = [f"{len(found) - MAX_WAITS} more"] if len(found) > MAX_WAITS else []
    return ", ".join([*found[:MAX_WAITS], *more])


def gate_text(result: Document) -> str:
    """Returns the state of a gate and what it said, for example `gate smoke-test Passed: 3 Jobs succeeded`."""
    said = printable(result.get("message")).rstrip(".")
    return f"gate {result['gate']} {result['state']}" + (f": {said}" if said else "")


def end_text(rollout: Document) -> str:
    """Returns how a roll-out ended, in one sentence without a full stop."""
    properties = rollout["properties"]
    total = total_of(properties.get("waveProgress", ()))
    if properties["state"] == SUCCEEDED and not total["nodes"]:
        who = "node with the labels of its selector" if properties.get("nodeSelector") else "node of the pool"
        return f"The roll-out {rollout['name']} changed nothing: no {who} needs revision {properties['revision']}"
    if properties["state"] == SUCCEEDED:
        offline = f", {total['offline']} offline" if total["offline"] else ""
        done = f"{total['updated']} of {count_nodes(total['nodes'])} on revision {properties['revision']}{offline}"
        return f"The roll-out {rollout['name']} succeeded: {done}"
    reason = printable(properties.get("reason")).rstrip(".") or "no reason was given"
    return f"The roll-out {rollout['name']} ended as {properties['state']}: {reason}"


def follow(
    rollout: Document,
    read: Callable[[bool], Document | None],
    print_line: Callable[[str], None],
    sleep: Callable[[float], None],
) -> Document:
    """Prints each change of a roll-out as one line until it has ended, and returns it.

    `read(True)` returns None if the service is unavailable for a moment; `read(False)` raises the error.
    """
    line, silence = "", 0.0
    while True:
        line, earlier = progress_text(rollout["properties"]), line
        if line != earlier:
            print_line(line)
        if has_ended(rollout):
            return rollout
        sleep(INTERVAL_SECONDS)
        found = read(silence < MAX_SILENCE_SECONDS)
        silence = silence + INTERVAL_SECONDS if found is None else 0.0
        rollout = found or rollout
