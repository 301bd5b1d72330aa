"""A machine with a VPN, and its Azure."""

from __future__ import annotations

import pytest

from tests.unit.agent.vpn.harness import Site


@pytest.fixture
def site() -> Site:
    return Site()
