"""Runs the service as a separate process with simulated clusters, for crash tests.

python -m tests.service.rp.api.program SETTINGS CA-CERT-DATA
"""

from __future__ import annotations

import sys

import uvloop

from aks_flex_rp.server import Server, configure_logging, listen
from aks_flex_rp.service import Service
from aks_flex_rp.settings import ServiceSettings
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters


async def serve(settings: ServiceSettings, ca_cert_data: str) -> None:
    server = Server(Service(settings, FakeClusters.of(known_clusters(ca_cert_data))))
    await server.run_service(listen(settings), lambda *_: None)


def main(document: str, ca_cert_data: str) -> None:
    settings = ServiceSettings.model_validate_json(document)
    configure_logging(settings.log)
    uvloop.run(serve(settings, ca_cert_data))


if __name__ == "__main__":
    main(*sys.argv[1:])
