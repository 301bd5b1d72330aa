"""Tests of the join benchmark: phases from the agent's output."""

from __future__ import annotations

import pytest

from bench.join.__main__ import phases

SAID = """warning: something
  ✓ runc                                        2 changes        0.52 s
  ✓ kubectl, kubeadm                            nothing to do    0.01 s
      containerd is running
  ✓ the node is registered and Ready            2 changes        1.12 s
Node m1 is Ready (2.7 s).
peak 55000 KiB cpu 2.00 s
"""


def test_join_phases_have_durations_and_remainder_is_startup() -> None:
    found = phases(SAID, 3.0)

    rest = found.pop("start, checks and end")
    assert found == {"runc": 0.52, "kubectl, kubeadm": 0.01, "the node is registered and Ready": 1.12}
    assert rest == pytest.approx(3.0 - 1.65)
