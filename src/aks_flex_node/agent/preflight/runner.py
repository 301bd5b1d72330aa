"""Runs all preflight checks concurrently, with one deadline.

The registry is imported late because it is slow to import.
"""

from __future__ import annotations

import difflib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from aks_flex_node.agent.preflight.check import Check, CheckFinding, as_warning, error, ok
from aks_flex_node.agent.preflight.interfaces import BackgroundCall, CallTimeout, run_concurrently
from aks_flex_node.errors import CommandUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from collections.abc import Set as AbstractSet

    from aks_flex_node.agent.preflight.check import PreflightContext

CHECK_SECONDS = 10.0  # what a check may take


def run_checks(
    context: PreflightContext,
    skip: AbstractSet[str] = frozenset(),
    checks: Sequence[Check] = (),
    seconds: float = CHECK_SECONDS,
    watch: Callable[[Check], None] = lambda _: None,
) -> list[CheckFinding]:
    """What all checks find, in their own order; `watch` is told of each check whose findings are in."""
    checks = checks or all_checks()
    refuse_unknown(skip, [check.name for check in checks])
    chosen = [check for check in checks if check.name not in skip]
    end = time.monotonic() + seconds
    findings: list[CheckFinding] = []
    for check, call in run_concurrently(lambda check: list(check.run(context)), chosen):
        found = [replace(finding, check=check.name) for finding in _collect(check, call, end, seconds)]
        # A node must be repaired while the cluster, or all the world, is away.
        findings += map(as_warning, found) if check.remote and context.has_credential else found
        watch(check)
    return findings


def all_checks() -> tuple[Check, ...]:
    # What they import must be here before threads start: two that import at once can lock each other out.
    from aks_flex_node.agent.preflight.registry import CHECKS

    return CHECKS


def refuse_unknown(words: Iterable[str], names: Sequence[str]) -> None:
    for word in sorted(words):
        if word not in names:
            near = difflib.get_close_matches(word, names, 1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(names)}."
            raise CommandUsageError("check-unknown", f"There is no check {word!r}.", hint)


def _collect(
    check: Check, call: BackgroundCall[list[CheckFinding]], end: float, seconds: float
) -> list[CheckFinding]:
    skipping = f"Go on without this check by --skip {check.name}, if you are sure."
    try:
        return call.wait(end) or [ok(check.title)]
    except CallTimeout:
        return [error(f"The check {check.name} did not end within {seconds:g} s.", skipping)]
    except Exception as raised:  # a mistake in one check must not hide what the others found
        what = f"{type(raised).__name__}: {raised}".rstrip(": ")
        return [error(f"The check {check.name} could not be made ({what}).", skipping)]
