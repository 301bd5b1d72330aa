"""Tests of fault rules: which rule matches a request, and how often."""

from __future__ import annotations

import pytest

from aks_flex_lab.errors import UsageError
from aks_flex_lab.mirror.fault_rules import (
    HALF,
    ByteAmount,
    ChecksumFault,
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
    fault_from_json,
    fault_to_json,
    parse_size,
)
from aks_flex_lab.mirror.served_files import checksum_subjects, falsify_checksums, is_checksum

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
        ("dl.k8s.io/v1", False),
        ("kubelet", False),
        ("dl.k8s.io/v1/kube?et", True),
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


def test_checksum_fault_affects_only_checksum_files() -> None:
    board = FaultRuleTable()
    board.add("dl.k8s.io/v1/kubelet", ChecksumFault())
    assert struck(board, KUBELET) == "-"
    path = "dl.k8s.io/v1/kubelet.sha256"
    assert struck(board, MirrorRequest(path, True, checksum_subjects(path, b"a" * 64))) == "checksum"


def test_removed_and_reset_fault_rules_are_inactive() -> None:
    board = FaultRuleTable()
    first, second = board.add("*", CorruptFault()), board.add("*", CutFault())
    assert board.remove(first.id)
    assert not board.remove(first.id)
    assert (board.is_active(first), board.is_active(second)) == (False, True)
    board.count_request("a/b")
    board.reset()
    assert (board.rules(), board.request_counts(), board.is_active(second)) == ((), (), False)
    assert board.add("*", CutFault()).id > second.id  # an ID is not reused


def test_request_counts_are_summed_per_path() -> None:
    board = FaultRuleTable()
    board.count_request("b")
    board.count_request("a")(10)
    board.count_request("a")(5)
    assert board.request_counts() == (RequestCount("a", 2, 15), RequestCount("b", 1, 0))


def test_bytes_of_request_before_reset_are_not_counted_after_it() -> None:
    board = FaultRuleTable()
    send_before = board.count_request("a")
    board.reset()
    send_before(10)
    assert board.request_counts() == ()
    board.count_request("a")(1)
    send_before(10)
    assert board.request_counts() == (RequestCount("a", 1, 1),)


@pytest.mark.parametrize(
    "switch",
    [
        SlowFault(200),
        StallFault(ByteAmount(10), 3.5),
        StallFault(),
        CutFault(HALF),
        CutFault(ByteAmount(percent=12.5)),
        CorruptFault(),
        StatusFault(404),
        StatusFault(503, 7),
        ChecksumFault(),
    ],
)
def test_fault_round_trips_through_control_socket_json(switch: MirrorFault) -> None:
    assert fault_from_json(fault_to_json(switch)) == switch
    rule = FaultRule(3, "a/*", switch, times=2, hits=1)
    assert FaultRule.from_json(rule.to_json()) == rule


@pytest.mark.parametrize(
    "wire",
    [
        {},
        {"kind": "explode"},
        {"kind": "slow"},
        {"kind": "slow", "rate": 0},
        {"kind": "slow", "rate": "fast"},
        {"kind": "status", "code": 200},
        {"kind": "status", "code": 503, "retry_after": -1},
        {"kind": "stall", "after": "50%", "hold": 0},
        {"kind": "cut", "after": "150%"},
    ],
)
def test_invalid_fault_is_refused(wire: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        fault_from_json(wire)


def test_fault_rule_requires_pattern_and_positive_count() -> None:
    for glob, times in (("", None), ("https://", None), ("*", 0)):
        with pytest.raises(UsageError, match="needs a pattern"):
            FaultRuleTable().add(glob, CorruptFault(), times)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("200k", 204800),
        ("200K", 204800),
        ("1.5M", 1572864),
        ("1GiB", 1 << 30),
        (" 2 kB ", 2048),
    ],
)
def test_human_readable_size_is_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "k", "-1", "1x", "1,5M", "1e3", "50%"])
def test_malformed_size_is_refused_with_hint(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size") as caught:
        parse_size(text)
    assert "200k" in caught.value.hint


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


def test_checksum_files_are_recognized_by_suffix() -> None:
    assert is_checksum("h/kubelet.sha256")
    assert is_checksum("h/runc.sha256sum")
    assert not is_checksum("h/kubelet")
