from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.unit.rp.clusters.harness import scene_with_token

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from tests.unit.rp.clusters.harness import Scene


@pytest.fixture
def scene() -> AbstractAsyncContextManager[Scene]:
    return scene_with_token()
