"""Tests of fault rules: which rule matches a request, and how often."""

from __future__ import annotations

import pytest

from aks_flex_lab.errors import UsageError
from aks_flex_lab.mirror.fault_rules import (
    ByteAmount,
    CorruptFault,
    CutFault,
    FaultRule,
    FaultRuleTable,
    MirrorFault,
    MirrorRequest,
    RequestCount,
    SlowFault,
    StallFault,
    StatusFault,
    fault_from_texts,
    parse_size,
)
from aks_flex_lab.mirror.served_files import falsify_checksums

KUBELET = MirrorRequest("dl.k8s.io/v1/kubelet", body=True)


def struck(board: FaultRuleTable, request: MirrorRequest) -> str:
    rule = board.match(request)
    return rule.fault.kind if rule else "-"


@pytest.mark.parametrize(
    ("glob", "covers"),
    [
        ("dl.k8s.io/v1/kubelet", True),
        ("dl.k8s.io/*", True),
        ("*/kubelet", True),
        ("*", True),
        ("https://dl.k8s.io/v1/kubelet", True),
        ("kubelet", False),
    ],
)
def test_fault_pattern_matches_host_and_path(glob: str, covers: bool) -> None:
    board = FaultRuleTable()
    board.add(glob, CorruptFault())
    assert (board.match(KUBELET) is not None) == covers


def test_first_unspent_fault_rule_applies() -> None:
    board = FaultRuleTable()
    board.add("*", CorruptFault(), times=2)
    board.add("*/kubelet", CutFault(), times=1)
    board.add("*", StatusFault(404))
    assert [struck(board, KUBELET) for _ in range(5)] == ["corrupt", "corrupt", "cut", "status", "status"]
    assert [rule.hits for rule in board.rules()] == [2, 1, 2]


def test_body_faults_do_not_affect_requests_without_body() -> None:
    board = FaultRuleTable()
    for switch in (SlowFault(1), StallFault(), CutFault(), CorruptFault()):
        board.add("*", switch)
    head = MirrorRequest(KUBELET.path, body=False)
    assert struck(board, head) == "-"
    board.add("*", StatusFault(503))
    assert struck(board, head) == "status"


def test_bytes_of_request_before_reset_are_not_counted_after_it() -> None:
    board = FaultRuleTable()
    send_before = board.count_request("a")
    board.reset()
    send_before(10)
    assert board.request_counts() == ()
    board.count_request("a")(1)
    send_before(10)
    assert board.request_counts() == (RequestCount("a", 1, 1),)


def test_fault_rule_requires_pattern_and_positive_count() -> None:
    for glob, times in (("", None), ("https://", None), ("*", 0)):
        with pytest.raises(UsageError, match="needs a pattern"):
            FaultRuleTable().add(glob, CorruptFault(), times)


def test_byte_amount_is_absolute_or_percentage_and_capped() -> None:
    assert ByteAmount.parse("50%").of(1001) == 500
    assert ByteAmount.parse("100%").of(7) == 7
    assert ByteAmount.parse("1k").of(5000) == 1024
    assert ByteAmount.parse("1k").of(100) == 100
    with pytest.raises(UsageError, match="more than 100 %"):
        ByteAmount.parse("101%")


def test_checksums_are_falsified_in_all_publisher_formats() -> None:
    right = "0123456789abcdef" * 4
    wrong = "123456789abcdef0" * 4
    assert falsify_checksums("h/kubelet.sha256", right.encode(), "h/kubelet") == wrong.encode()
    assert (
        falsify_checksums("h/c.tgz.sha512", f"{right * 2}  c.tgz\n".encode(), "*") == f"{wrong * 2}  c.tgz\n".encode()
    )
    text = f"# sums\n{right} *./runc.amd64\n{right}  runc.arm64\n".encode()
    partly = f"# sums\n{wrong} *./runc.amd64\n{right}  runc.arm64\n".encode()
    assert falsify_checksums("h/r/runc.sha256sum", text, "h/r/runc.amd64") == partly
    assert falsify_checksums("h/r/runc.sha256sum", text, "h/r/runc.sha256sum").count(wrong.encode()) == 2


def test_reset_fault_rule_is_inactive_and_its_id_is_not_used_again() -> None:
    board = FaultRuleTable()
    rule = board.add("*", CutFault())
    assert board.is_active(rule)
    board.reset()
    assert (board.rules(), board.is_active(rule)) == ((), False)
    assert board.add("*", CutFault()).id > rule.id


@pytest.mark.parametrize(
    "fault",
    [
        SlowFault(200),
        StallFault(ByteAmount(10), 3.5),
        CutFault(ByteAmount(percent=12.5)),
        CorruptFault(),
        StatusFault(404),
        StatusFault(503, 7),
    ],
)
def test_fault_rule_is_the_same_after_the_control_socket(fault: MirrorFault) -> None:
    rule = FaultRule(3, "a/*", fault, times=2, hits=1)
    assert FaultRule.from_document(rule.document) == rule


@pytest.mark.parametrize(
    "text", ["explode", "slow", "slow rate=fast", "status code=x", "cut after=150%", "cut hold=1"]
)
def test_invalid_fault_is_refused(text: str) -> None:
    kind, *values = text.split()
    with pytest.raises(UsageError):
        fault_from_texts({"kind": kind, **dict(value.split("=") for value in values)})


@pytest.mark.parametrize(
    ("text", "size"), [("4096", 4096), ("200k", 204800), ("1.5M", 1572864), (" 1 GiB ", 1 << 30)]
)
def test_human_readable_size_is_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size
