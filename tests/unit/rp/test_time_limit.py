"""Tests of time limits of asynchronous work."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import aks_flex_rp
from aks_flex_rp.time_limit import within


async def test_cancellation_at_the_end_of_the_work_is_not_lost() -> None:
    """asyncio.wait_for of Python 3.11 returns the result, and the task goes on for ever."""
    discarded: list[str] = []

    done = asyncio.Event()

    async def work() -> str:
        await done.wait()
        return "result"

    async def discard(result: str) -> None:
        discarded.append(result)

    task = asyncio.ensure_future(within(60, work(), discard))
    for _ in range(3):
        await asyncio.sleep(0)
    done.set()
    await asyncio.sleep(0)  # the work ends now
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert discarded == ["result"]


def test_result_error_and_timeout() -> None:
    async def answer(seconds: float = 0.0) -> int:
        await asyncio.sleep(seconds)
        return 7

    async def fail() -> int:
        raise ValueError("no")

    assert asyncio.run(within(5, answer())) == 7
    with pytest.raises(ValueError, match="no"):
        asyncio.run(within(5, fail()))
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(within(0.01, answer(60)))


def test_provider_does_not_use_wait_for() -> None:
    for file in Path(aks_flex_rp.__file__).parent.rglob("*.py"):
        names = {node.attr for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)}
        assert "wait_for" not in names, file
