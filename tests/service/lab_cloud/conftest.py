"""One cloud for all tests here. Each makes the principals that it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.service.lab_cloud.clouds import running_cloud, running_provider

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.lab.pki import Authority
    from tests.service.lab_cloud.clouds import Cloud


@pytest.fixture(scope="module")
def provider(authority: Authority) -> Iterator[str]:
    with running_provider(authority.issue("localhost", "localhost", names=("localhost",))) as url:
        yield url


@pytest.fixture(scope="module")
def cloud(authority: Authority, provider: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with running_cloud(authority, tmp_path_factory.mktemp("cloud"), provider) as cloud:
        yield cloud
