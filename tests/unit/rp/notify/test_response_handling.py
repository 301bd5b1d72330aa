from __future__ import annotations

import pytest

from aks_flex_rp.notify.notifier import MAX_RETRY_SECONDS, RetryPolicy
from aks_flex_rp.notify.webhook_client import SendResult, SendStatus, classify_response


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        *((each, "sent") for each in (200, 202, 204, 299)),
        *((each, "refused") for each in (301, 307, 400, 401, 403, 404, 413, 422)),
        *((each, "failed") for each in (100, 408, 425, 429, 500, 502, 503, 504)),
        (410, "gone"),
    ],
)
def test_response_status_determines_send_result(status: int, verdict: str) -> None:
    assert classify_response(status).status == verdict


@pytest.mark.parametrize(
    ("header", "wait"), [("", 0), ("120", 120), ("999999", 3600), ("-5", 0), ("Fri, 01 May 2026 12:00:00 GMT", 0)]
)
def test_retry_after_of_receiver_is_used_within_bounds(header: str, wait: float) -> None:
    assert classify_response(503, header) == SendResult(SendStatus.FAILED, "The receiver responded with 503.", wait)


def test_retry_delay_grows_up_to_maximum_with_jitter() -> None:
    pace = RetryPolicy()
    for tries, most in ((1, 5.0), (2, 10.0), (5, 80.0), (11, MAX_RETRY_SECONDS), (5000, MAX_RETRY_SECONDS)):
        pauses = {pace.pause(tries, 5.0) for _ in range(50)}
        assert most / 2 <= min(pauses) < max(pauses) <= most
    assert pace.pause(5000, 5.0, 300.0) <= 300.0
