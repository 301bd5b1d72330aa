"""Tests of status reports: immediate after a change, periodic heartbeats, and backoff on errors."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
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
    """A provider that records reports and can reject them."""

    refuses: PollResult | None = None
    reports: list[Any] = field(default_factory=list)
    now: float = 1000.0

    def report_status(self, report: Any) -> None:
        self.reports.append(report)
        if self.refuses:
            raise ProviderRequestError(self.refuses)

    def teller(self) -> StatusReporter:
        return StatusReporter(cast("ConfigSource", self), clock=lambda: self.now)


def due(teller: StatusReporter, heard: RecordingProvider, seconds: float) -> bool:
    """Returns whether a report is due after this many seconds."""
    heard.now += seconds
    return teller.is_due


def test_first_status_report_is_due_immediately() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    assert not teller.is_due
    teller.update({"a": 1})
    assert teller.is_due


def test_unchanged_status_report_is_repeated_as_a_heartbeat() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    teller.update({"a": 1})
    teller.send({"a": 1})
    teller.update({"a": 1})
    assert not due(teller, heard, HEARTBEAT_SECONDS - 1)
    assert due(teller, heard, 1)


def test_changed_status_report_is_due_immediately() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    teller.update({"a": 1})
    teller.send({"a": 1})
    heard.now += MIN_INTERVAL
    teller.update({"a": 2})
    assert teller.is_due


def test_many_status_changes_are_sent_as_one_report() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    for number in range(100):
        teller.update({"a": number})
        if teller.is_due:
            teller.send({"a": number})
    assert len(heard.reports) == 1
    assert due(teller, heard, MIN_INTERVAL)


def test_status_change_during_a_send_is_due_afterwards() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    teller.update({"a": 2})
    teller.send({"a": 1})
    assert due(teller, heard, MIN_INTERVAL)


def test_failed_status_report_is_retried_with_backoff_despite_changes() -> None:
    heard = RecordingProvider(refuses=PollResult(ProviderState.UNREACHABLE))
    teller = heard.teller()
    teller.update({"a": 0})
    for number, delay in enumerate([*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1]], 1):
        teller.send({"a": number - 1})
        teller.update({"a": number})
        assert not due(teller, heard, delay - 1)
        assert due(teller, heard, 1)
    heard.refuses = None
    teller.send({"a": 99})
    heard.now += MIN_INTERVAL
    teller.update({"a": 100})
    assert teller.is_due


@pytest.mark.parametrize(("after", "delay"), [(120.0, 120.0), (1e9, 3600.0), (0.0, RETRY_SECONDS[0])])
def test_status_reporter_honors_retry_after(after: float, delay: float) -> None:
    heard = RecordingProvider(refuses=PollResult(ProviderState.THROTTLED, retry_after=after))
    teller = heard.teller()
    teller.update({"a": 1})
    teller.send({"a": 1})
    assert not due(teller, heard, delay - 1)
    assert due(teller, heard, 1)


def test_status_reporter_thread_sends_only_the_latest_report() -> None:
    heard = RecordingProvider()
    teller = heard.teller()
    for number in range(5):
        teller.update({"a": number})
    before = threading.active_count()
    teller.start()
    eventually(lambda: heard.reports)
    teller.stop()
    eventually(lambda: threading.active_count() == before)
    assert heard.reports == [{"a": 4}]


def test_status_reporter_thread_without_a_report_ends_on_stop() -> None:
    teller = RecordingProvider().teller()
    before = threading.active_count()
    teller.start()
    teller.stop()
    eventually(lambda: threading.active_count() == before)


class Broken(RecordingProvider):
    def report_status(self, report: Any) -> None:
        self.reports.append(report)
        raise ValueError("Invalid header value")


def test_status_reporter_retries_after_an_unexpected_error() -> None:
    heard = Broken()
    teller = heard.teller()
    teller.update({"a": 1})
    teller.send({"a": 1})
    assert due(teller, heard, RETRY_SECONDS[0])
