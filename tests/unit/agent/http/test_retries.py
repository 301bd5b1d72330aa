"""Tests of retries: until success, a permanent error or cancellation."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from aks_flex_node.agent.artifacts.download import MAX_READ_BYTES, MIN_READ_BYTES, content_range, next_read_size
from aks_flex_node.agent.http.client import parse_retry_after
from aks_flex_node.errors import ArtifactError
from aks_flex_node.retry import AttemptFailed, Retrier, RetryBackoff

NO_WAIT = RetryBackoff(first_delay=0.0, max_delay=0.0, max_retry_after=0.0)


def persistence(attempts: int = 3) -> Retrier:
    return Retrier(attempts, NO_WAIT, threading.Event())


class FailingOperation:
    """Fails a given number of times, and progresses each time."""

    def __init__(self, failures: int, step: int = 0, retryable: bool = True) -> None:
        self.left, self.step, self.retryable = failures, step, retryable
        self.reached = self.tried = 0

    def __call__(self) -> str:
        self.tried += 1
        self.reached += self.step
        if self.left:
            self.left -= 1
            raise AttemptFailed("it was cut", retryable=self.retryable)
        return "done"


@pytest.mark.parametrize(
    ("failures", "retryable", "tried"), [(2, True, 3), (9, True, 3), (9, False, 1)], ids=["until success", *"ab"]
)
def test_operation_is_repeated_until_success_or_the_maximum(failures: int, retryable: bool, tried: int) -> None:
    work = FailingOperation(failures, retryable=retryable)
    with nullcontext() if failures < tried else pytest.raises(AttemptFailed):
        assert persistence().run(work) == "done"
    assert work.tried == tried


def test_retry_never_gives_up_while_there_is_progress() -> None:
    work = FailingOperation(failures=20, step=1)
    assert persistence().run(work, lambda: work.reached) == "done"


def test_retry_attempts_nothing_after_a_stop() -> None:
    stopped = persistence()
    stopped.stopped.set()
    with pytest.raises(ArtifactError) as caught:
        stopped.run(FailingOperation(failures=0))
    assert caught.value.name == "download-cancelled"


def test_backoff_delays_grow_to_a_limit_with_jitter() -> None:
    pace = RetryBackoff(first_delay=1.0, factor=2.0, max_delay=10.0)
    for failures, limit in ((1, 1.0), (2, 2.0), (4, 8.0), (9, 10.0), (500, 10.0)):
        delays = {pace.delay(failures) for _ in range(20)}
        assert all(limit / 2 <= delay <= limit for delay in delays)
        assert len(delays) > 1


def test_backoff_caps_retry_after() -> None:
    pace = RetryBackoff(first_delay=0.0, max_retry_after=60.0)
    assert pace.delay(1, after=7.0) == 7.0
    assert pace.delay(1, after=86_400.0) == 60.0


def test_retry_after_is_parsed_as_seconds_or_date() -> None:
    assert parse_retry_after("7") == 7.0
    assert parse_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert parse_retry_after("") is None
    assert parse_retry_after("soon") is None


def test_read_size_grows_on_fast_and_shrinks_on_slow_connections() -> None:
    assert next_read_size(MIN_READ_BYTES, 0.001) == 2 * MIN_READ_BYTES
    assert next_read_size(MAX_READ_BYTES, 0.001) == MAX_READ_BYTES
    assert next_read_size(MAX_READ_BYTES, 0.5) == MAX_READ_BYTES
    assert next_read_size(MAX_READ_BYTES, 5.0) == MAX_READ_BYTES // 2
    assert next_read_size(MIN_READ_BYTES, 5.0) == MIN_READ_BYTES


def test_content_range_is_parsed_from_the_response_headers() -> None:
    assert content_range(200, {"Content-Length": "10"}) == (0, 10)
    assert content_range(200, {}) == (0, None)
    assert content_range(206, {"Content-Range": "bytes 4-9/10"}) == (4, 10)
    assert content_range(206, {"Content-Range": "bytes 4-9/*"}) == (-1, None)
    assert content_range(206, {}) == (-1, None)
