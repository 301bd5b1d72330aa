"""Where a lab keeps its things, and which names it may have."""

from __future__ import annotations

from pathlib import Path

import pytest

from aks_flex_lab.errors import UsageError
from aks_flex_lab.layout import lab_layout
from tests.lab.host_inspection import FOREIGN


def test_labs_are_apart_and_share_the_cache() -> None:
    one, two = lab_layout("one", {"HOME": "/root"}), lab_layout("two", {"HOME": "/root"})

    assert one.home != two.home
    assert one.lock != two.lock
    assert one.prefix != two.prefix
    assert one.cache == two.cache == Path("/root/.cache/aks-flex-lab")


def test_the_environment_moves_both_places() -> None:
    moved = lab_layout("one", {"AKS_FLEX_LAB_HOME": "/big/labs", "AKS_FLEX_LAB_CACHE": "/big/cache"})

    assert moved.home == Path("/big/labs/one")
    assert moved.cache == Path("/big/cache")


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "..", "-a", "a-", "a" * 13, "ü"])
def test_a_name_that_cannot_be_a_directory_and_a_namespace_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="not a valid name"):
        lab_layout(name, {})


def test_no_lab_can_be_taken_for_another_whose_name_it_starts_with() -> None:
    assert not lab_layout("a-b", {}).prefix.startswith(lab_layout("a", {}).prefix)


@pytest.mark.parametrize(
    ("text", "foreign"),
    [
        ("/sys/fs/cgroup/pids/aks-flex-lab.test-b/part-etcd", False),
        ("/sys/fs/cgroup/pids/aks-flex-lab.try/part-etcd", True),
        ("/run/aks-flex-lab.test-b.lock", False),
        ("/run/aks-flex-lab.lock", False),
        ("/sys/fs/cgroup/pids/aks-flex-lab.test-b", False),
        ("/sys/fs/cgroup/pids/aks-flex-lab.try", True),
        ("/run/netns/fl.test-b.cloud", False),
        ("/run/netns/fl.test.cloud", True),
        ("etcd --data-dir=/var/lib/aks-flex-lab/test-b/parts", False),
        ("etcd --data-dir=/var/lib/aks-flex-lab/mine/parts", True),
    ],
)
def test_the_search_for_leftovers_sees_its_own_lab_and_no_other(text: str, foreign: bool) -> None:
    assert bool(FOREIGN.search(text)) == foreign
