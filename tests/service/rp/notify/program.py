"""Runs the service as a separate process with simulated clusters, for crash tests.

python -m tests.service.rp.notify.program CONFIG CA-CERT-DATA
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import uvloop

from aks_flex_rp import settings as files
from aks_flex_rp.server import Server, configure_logging, listen
from aks_flex_rp.service import Service
from tests.service.rp.api.fake_clusters import FakeClusters, known_clusters


async def serve(config: Path, ca_cert_data: str) -> None:
    settings = files.load(config, os.environ)
    configure_logging(settings.log)
    server = Server(Service(settings, FakeClusters.of(known_clusters(ca_cert_data))))
    await server.run_service(listen(settings), lambda *_: None)


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), sys.argv[2]))
