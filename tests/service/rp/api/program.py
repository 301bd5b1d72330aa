"""Runs the service as a separate process with simulated clusters, for crash tests.

python -m tests.service.rp.api.program STATE PORT CA-CERT-DATA [DATABASE]
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvloop

from aks_flex_rp.server import Server, configure_logging, listen
from aks_flex_rp.service import Service
from aks_flex_rp.settings import ServiceSettings
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters
from tests.service.rp.api.service_harness import PLENTY


async def serve(settings: ServiceSettings, ca_cert_data: str) -> None:
    server = Server(Service(settings, FakeClusters.of(known_clusters(ca_cert_data))))
    await server.run_service(listen(settings), lambda *_: None)


def main(state: str, port: str, ca_cert_data: str, database: str = "") -> None:
    words = {
        "listen": f"127.0.0.1:{port}",
        "public_url": f"https://127.0.0.1:{port}",
        "state_dir": Path(state),
        "database": database or None,
        "limits": PLENTY,
    }
    settings = ServiceSettings.model_validate(words)
    configure_logging(settings.log)
    uvloop.run(serve(settings, ca_cert_data))


if __name__ == "__main__":
    main(*sys.argv[1:])
