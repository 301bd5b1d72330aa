"""Tests of the paths of a lab, and of its valid names."""

from __future__ import annotations

from pathlib import Path

import pytest

from aks_flex_lab.errors import UsageError
from aks_flex_lab.layout import lab_layout
from tests.lab.host_inspection import FOREIGN


def test_labs_have_separate_directories_and_share_cache() -> None:
    one, two = lab_layout("one", {"HOME": "/root"}), lab_layout("two", {"HOME": "/root"})

    assert one.home != two.home
    assert one.lock != two.lock
    assert one.prefix != two.prefix
    assert one.cache == two.cache == Path("/root/.cache/aks-flex-lab")


def test_environment_variables_override_home_and_cache() -> None:
    moved = lab_layout("one", {"AKS_FLEX_LAB_HOME": "/big/labs", "AKS_FLEX_LAB_CACHE": "/big/cache"})

    assert moved.home == Path("/big/labs/one")
    assert moved.cache == Path("/big/cache")


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a-", "a" * 13, "ü"])
def test_invalid_lab_name_is_refused_by_layout(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name"):
        lab_layout(name, {})


def test_lab_prefix_is_not_a_prefix_of_another_lab() -> None:
    assert not lab_layout("a-b", {}).prefix.startswith(lab_layout("a", {}).prefix)


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("/sys/fs/cgroup/pids/aks-flex-lab.test-b/part-etcd", False),
        ("/sys/fs/cgroup/pids/aks-flex-lab.try/part-etcd", True),
        ("/run/aks-flex-lab.lock", False),
        ("/run/netns/fl.test-b.cloud", False),
        ("/run/netns/fl.test.cloud", True),
        ("etcd --data-dir=/var/lib/aks-flex-lab/test-b/parts", False),
        ("etcd --data-dir=/var/lib/aks-flex-lab/mine/parts", True),
    ],
)
def test_leftover_search_distinguishes_own_lab_from_other_labs(text: str, foreign: bool) -> None:
    assert bool(FOREIGN.search(text)) == foreign
