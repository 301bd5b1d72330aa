"""Tests of status reports: immediate after a change, periodic heartbeats, and backoff on errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import pytest

from aks_flex_node.agent.daemon.status_reporter import HEARTBEAT_SECONDS, MIN_INTERVAL, RETRY_SECONDS, StatusReporter
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from tests.unit.agent.daemon.fakes import eventually

if TYPE_CHECKING:
    from aks_flex_node.agent.config_sources.source import ConfigSource


@dataclass
class RecordingProvider:
    """A provider that records reports and can reject them, and the reporter that sends them."""

    refuses: Exception | None = None
    reports: list[Any] = field(default_factory=list)
    now: float = 1000.0

    @cached_property
    def reporter(self) -> StatusReporter:
        return StatusReporter(cast("ConfigSource", self), clock=lambda: self.now)

    def report_status(self, report: Any) -> None:
        self.reports.append(report)
        if self.refuses:
            raise self.refuses

    def is_due(self, *, after: float) -> bool:
        self.now += after
        return self.reporter.is_due

    def gets(self, number: int) -> RecordingProvider:
        """Lets the reporter send this status."""
        self.reporter.update({"a": number})
        self.reporter.send({"a": number})
        return self


@pytest.fixture
def provider() -> RecordingProvider:
    return RecordingProvider()


def refusal(state: ProviderState, after: float = 0.0) -> ProviderRequestError:
    return ProviderRequestError(PollResult(state, retry_after=after))


def test_first_status_report_is_due_immediately(provider: RecordingProvider) -> None:
    assert not provider.reporter.is_due
    provider.reporter.update({"a": 1})
    assert provider.reporter.is_due


def test_unchanged_status_report_is_repeated_as_a_heartbeat(provider: RecordingProvider) -> None:
    provider.gets(1).reporter.update({"a": 1})
    assert not provider.is_due(after=HEARTBEAT_SECONDS - 1)
    assert provider.is_due(after=1)


def test_many_status_changes_are_sent_as_one_report(provider: RecordingProvider) -> None:
    for number in range(100):
        provider.reporter.update({"a": number})
        if provider.reporter.is_due:
            provider.reporter.send({"a": number})
    assert len(provider.reports) == 1
    assert provider.is_due(after=MIN_INTERVAL)


def test_status_change_during_a_send_is_due_afterwards(provider: RecordingProvider) -> None:
    provider.reporter.update({"a": 2})
    provider.reporter.send({"a": 1})
    assert provider.is_due(after=MIN_INTERVAL)


def test_failed_status_report_is_retried_with_backoff_despite_changes(provider: RecordingProvider) -> None:
    provider.refuses = refusal(ProviderState.UNREACHABLE)
    provider.reporter.update({"a": 0})
    for number, delay in enumerate([*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1]], 1):
        provider.reporter.send({"a": number - 1})
        provider.reporter.update({"a": number})
        assert not provider.is_due(after=delay - 1)
        assert provider.is_due(after=1)
    provider.refuses = None
    provider.reporter.send({"a": 99})
    provider.now += MIN_INTERVAL
    provider.reporter.update({"a": 100})
    assert provider.reporter.is_due


@pytest.mark.parametrize(
    ("refuses", "delay"),
    [
        (refusal(ProviderState.THROTTLED, 120.0), 120.0),
        (refusal(ProviderState.THROTTLED, 1e9), 3600.0),
        (refusal(ProviderState.THROTTLED), RETRY_SECONDS[0]),
        (ValueError("Invalid header value"), RETRY_SECONDS[0]),
    ],
    ids=str,
)
def test_status_reporter_honors_retry_after(provider: RecordingProvider, refuses: Exception, delay: float) -> None:
    provider.refuses = refuses
    provider.gets(1)
    assert not provider.is_due(after=delay - 1)
    assert provider.is_due(after=1)


@pytest.mark.parametrize("updates", [0, 5])
def test_status_reporter_thread_sends_only_the_latest_report(provider: RecordingProvider, updates: int) -> None:
    for number in range(updates):
        provider.reporter.update({"a": number})
    before = threading.active_count()
    provider.reporter.start()
    eventually(lambda: provider.reports or not updates)
    provider.reporter.stop()
    eventually(lambda: threading.active_count() == before)
    assert provider.reports == ([{"a": updates - 1}] if updates else [])
