"""Fixtures: the lab that all tests of a run share. Coroutine tests run in event loops of their own."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from inspect import iscoroutinefunction, signature
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.kernel import host_state
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import lab_layout
from aks_flex_lab.machines.base_system import DebianRelease
from aks_flex_lab.tools import catalog
from tests.harness import LAB, Lines
from tests.lab_machines import temporary_machine
from tests.tiers import is_full

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from aks_flex_lab.machines.machine import EdgeMachine


def pytest_configure() -> None:
    """Cleans up on SIGTERM as on Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the selection by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_full(item):
            item.add_marker(pytest.mark.full)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a coroutine test. Values of fixtures that are asynchronous contexts are entered in its event loop."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            arguments: dict[str, Any] = {}
            for name in signature(pyfuncitem.obj).parameters:
                value: Any = pyfuncitem.funcargs[name]
                is_context = isinstance(value, AbstractAsyncContextManager)
                arguments[name] = await stack.enter_async_context(value) if is_context else value
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Yields one lab for the whole run; with different names, two runs can be concurrent."""
    shared = Lab(lab_layout(LAB))
    shared.down()
    others = shared.layout.labs_directory.exists()  # another lab has changed the kernel settings
    settings = host_state.read_sysctls()
    try:
        shared.provide(catalog.suite_tools(), Lines())  # tests join nodes with every version
        shared.up(Lines())
        yield shared
    finally:
        left = shared.down()
    assert left == []
    if not others and not shared.layout.labs_directory.exists():  # otherwise another lab is running and restores them
        assert host_state.read_sysctls() == settings


@pytest.fixture
def add_machine(lab: Lab) -> Iterator[Callable[..., EdgeMachine]]:
    """Yields a function that creates machines; removes them after the test."""
    with ExitStack() as made:

        def add(name: str, system: DebianRelease = DebianRelease.BOOKWORM, site: str = "site-1") -> EdgeMachine:
            return made.enter_context(temporary_machine(lab, name, system, site))

        yield add
