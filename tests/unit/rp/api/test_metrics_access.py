"""Tests of the access to metrics."""

from __future__ import annotations

import pytest

from aks_flex_rp.api.metrics import MetricsAccess
from aks_flex_rp.arm.errors import ArmError


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_metrics_are_open_on_the_same_host(address: str) -> None:
    MetricsAccess(None).check(address, "")


@pytest.mark.parametrize("address", ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", ""])
def test_metrics_without_token_are_closed_to_the_network(address: str) -> None:
    """Attack: a client on the network reads the metrics."""
    with pytest.raises(ArmError, match="metricsTokenFile") as caught:
        MetricsAccess(None).check(address, "Bearer x")
    assert caught.value.status == 403
