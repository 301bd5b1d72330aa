from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.nodes.harness import site_with_cluster

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from tests.service.rp.nodes.harness import Site


@pytest.fixture
def site(tmp_path: Path) -> AbstractAsyncContextManager[Site]:
    return site_with_cluster(tmp_path)
