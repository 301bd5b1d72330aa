"""Tests of the result file of a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.agent.job_records import job_result
from aks_flex_node.agent.job_records.job_result import JobKind, JobResult, JobStatus
from tests.hosts.recorded import RecordedHost

FILE = job_result.RESULT
GOOD: dict[str, Any] = {"kind": "update", "result": "failed"}


def test_job_result_round_trips_and_is_mode_0600() -> None:
    host = RecordedHost()
    outcome = JobResult(JobKind.UPDATE, JobStatus.FAILED, "disk-full", "It is full.", "Tidy.", "7", retryable=True)
    FILE.write(host, outcome)
    assert FILE.read(host) == outcome
    assert host.mode_of(FILE.path) == 0o600


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[]", "null", "5", "{}", '{"kind": "update"}', '{"result": "done"}'),
        '{"kind": "update", "result": "failed", "retryable": "yes"}',
        *('{"kind": "x", "result": "odd"}', '{"kind": "x", "result": []}', '{"kind": "x", "result": null}'),
    ],
)
def test_malformed_job_result_reads_as_none(text: str) -> None:
    assert FILE.read(RecordedHost({FILE.path: text})) is None


def test_unknown_fields_of_a_job_result_are_ignored() -> None:
    found = FILE.read(RecordedHost({FILE.path: json.dumps({**GOOD, "later": 1})}))
    assert found
    assert found.kind == JobKind.UPDATE
