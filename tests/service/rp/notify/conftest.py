from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.rp.notify.receivers import SECRET, receiving, write_secrets
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.service.rp.notify.receivers import Receiver
    from tests.service.rp.store.servers import PostgresServer


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    return write_secrets(tmp_path / "webhook-secret", SECRET)
