"""Tests of every fault rule of the mirror, with curl."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    ChecksumFault,
    CorruptFault,
    CutFault,
    SlowFault,
    StallFault,
    StatusFault,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aks_flex_lab.mirror.control import MirrorClient
    from aks_flex_lab.processes import CommandResult

    Curl = Callable[..., CommandResult]

KUBELET = "dl.k8s.io/v1/kubelet"
WHOLE = 1 << 20
CODE = ("-o", os.devnull, "-w", "%{http_code} %{size_download}")
TOO_SLOW = 28  # curl's exit code for --max-time
RESET = (18, 56)  # cut, or reset during the read


def until(holds: Callable[[], bool]) -> None:
    while not holds():  # limited by the timeout of pytest
        time.sleep(0.01)


def test_slow_fault_limits_rate(mirror: MirrorClient, curl: Curl) -> None:
    mirror.add(KUBELET, SlowFault(rate=20_000))
    answer = curl(*CODE, "--max-time", "2", KUBELET)
    assert answer.code == TOO_SLOW
    assert 0 < int(answer.out.split()[1]) < WHOLE // 4


def test_slow_download_speeds_up_when_fault_is_removed(
    mirror: MirrorClient, curl: Curl, tree: Path, tmp_path: Path
) -> None:
    mirror.add(KUBELET, SlowFault(rate=1))
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(curl, "-o", tmp_path / "got", KUBELET)
        until(lambda: KUBELET in mirror.requests())
        mirror.reset()
        assert answer.result().ok
    assert (tmp_path / "got").read_bytes() == (tree / KUBELET).read_bytes()


@pytest.mark.parametrize(("after", "received"), [("0", 0), ("1000", 1000), ("50%", WHOLE // 2)])
def test_stall_fault_sends_given_bytes_and_then_nothing(
    mirror: MirrorClient, curl: Curl, after: str, received: int
) -> None:
    mirror.add(KUBELET, StallFault(after=ByteAmount.parse(after)))
    answer = curl(*CODE, "--max-time", "2", KUBELET)
    assert (answer.code, answer.out) == (TOO_SLOW, f"200 {received}")


def test_stall_ends_after_hold_time_or_when_fault_is_removed(mirror: MirrorClient, curl: Curl) -> None:
    mirror.add(KUBELET, StallFault(hold=0.1), times=1)
    assert curl(*CODE, KUBELET).code in RESET
    mirror.add(KUBELET, StallFault())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(curl, *CODE, KUBELET)
        until(lambda: mirror.rules()[1].hits == 1)
        mirror.reset()
        assert answer.result().code in RESET


@pytest.mark.parametrize(("after", "received"), [("0", 0), ("1000", 1000), ("50%", WHOLE // 2)])
def test_cut_fault_sends_given_bytes_and_resets_connection(
    mirror: MirrorClient, curl: Curl, after: str, received: int
) -> None:
    mirror.add(KUBELET, CutFault(after=ByteAmount.parse(after)))
    answer = curl(*CODE, KUBELET)
    assert answer.code == 56
    assert "reset by peer" in answer.err
    assert answer.out == f"200 {received}"


def test_download_resumes_after_cut(mirror: MirrorClient, curl: Curl, tree: Path, tmp_path: Path) -> None:
    mirror.add(KUBELET, CutFault(), times=2)
    for status, size in (("200", WHOLE // 2), ("206", WHOLE * 3 // 4), ("206", WHOLE)):
        answer = curl("-C", "-", "-o", tmp_path / "got", "-w", "%{http_code}", KUBELET)
        assert answer.out == status
        assert (tmp_path / "got").stat().st_size == size
    assert (tmp_path / "got").read_bytes() == (tree / KUBELET).read_bytes()
    assert mirror.requests()[KUBELET].bytes == WHOLE


def test_corrupt_fault_sends_wrong_bytes_of_right_length(
    mirror: MirrorClient, curl: Curl, tree: Path, tmp_path: Path
) -> None:
    mirror.add(KUBELET, CorruptFault())
    assert curl("-o", tmp_path / "got", KUBELET).ok
    right, got = (tree / KUBELET).read_bytes(), (tmp_path / "got").read_bytes()
    assert len(got) == WHOLE
    assert 0 < sum(mine != theirs for mine, theirs in zip(right, got, strict=True)) <= 64


def test_missing_fault_returns_404_also_for_head(mirror: MirrorClient, curl: Curl) -> None:
    mirror.add(KUBELET, StatusFault(404))
    assert curl(*CODE, KUBELET).out.split()[0] == "404"
    assert curl(*CODE, "-I", KUBELET).out.split()[0] == "404"


def test_unavailable_fault_returns_503_with_optional_retry_after(mirror: MirrorClient, curl: Curl) -> None:
    mirror.add(KUBELET, StatusFault(503), times=1)
    mirror.add(KUBELET, StatusFault(503, retry_after=7), times=1)
    assert "Retry-After" not in curl("-i", KUBELET).out
    second = curl("-i", KUBELET).out
    assert second.startswith("HTTP/1.1 503 Service Unavailable")
    assert "Retry-After: 7" in second
    assert curl(*CODE, KUBELET).out == f"200 {WHOLE}"


def test_checksum_fault_returns_wrong_checksum_of_same_format(mirror: MirrorClient, curl: Curl, tree: Path) -> None:
    right = hashlib.sha256((tree / KUBELET).read_bytes()).hexdigest()
    assert curl(f"{KUBELET}.sha256").out == right
    mirror.add(KUBELET, ChecksumFault())  # by the name of the file that the checksum is for
    wrong = curl(f"{KUBELET}.sha256").out
    assert len(wrong) == len(right)
    assert wrong != right
    assert set(wrong) <= set("0123456789abcdef")
    assert curl(*CODE, KUBELET).out == f"200 {WHOLE}"
