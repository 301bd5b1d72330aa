"""Thousands of requests that schemathesis generates from the contract, on both stores."""

from __future__ import annotations

import base64
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.pki import CertificateAuthority
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.schemathesis_run import fuzz
from tests.service.rp.api.service_harness import PLENTY, running, settings
from tests.service.rp.api.traffic_recorder import Recording
from tests.service.rp.store.servers import postgres_server

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLES = 400  # for each of eight operations, besides more than 1,000 that cover its parameters
SECONDS = 1800


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_fuzzed_requests_are_answered_according_to_contract(store: str, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    authority.ensure()
    ca_cert_data = base64.b64encode(authority.certificate.read_bytes()).decode()
    with ExitStack() as stack:
        database = stack.enter_context(postgres_server()).new_database() if store == "postgres" else None
        words = settings(tmp_path / "state", limits=PLENTY, database=database)
        clusters = FakeClusters.of(known_clusters(ca_cert_data))
        service = stack.enter_context(running(words, clusters, Recording()))

        said = fuzz(service, tmp_path, EXAMPLES, SECONDS)

        assert said.ok, said.out + said.err
