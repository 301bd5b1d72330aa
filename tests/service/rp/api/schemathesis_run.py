"""Runs schemathesis against a service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.processes import run
from tests.service.rp.api.bodies import principal, token

if TYPE_CHECKING:
    from aks_flex_lab.processes import CommandResult
    from tests.service.rp.api.service_harness import Running

CONFIG = Path(__file__).parent / "schemathesis.toml"
PROGRAM = Path(sys.executable).parent / "schemathesis"


def fuzz(service: Running, room: Path, examples: int, seconds: float = 600) -> CommandResult:
    """Sends this many generated requests for each operation, besides those that cover its parameters."""
    for name in ("fuzz-1", "fuzz-2"):
        service.admin.put(name, token(maxPods=20), url=True)
    service.admin.put("fuzz-3", principal())
    for pool in ("fuzza", "fuzzb"):
        service.admin.put_pool(pool, {"nodeConfig": {"maxPods": 20}})
    service.admin.put("fuzz-4", {"properties": {"poolName": "fuzza"}})
    secret = {
        "AKS_FLEX_RP_AUTHORIZATION": service.admin.authorization,
        "AKS_FLEX_RP_CA": str(service.room / "tls" / "ca.crt"),
    }
    words = (
        "--max-examples",
        str(examples),
        "--phases",
        "coverage,fuzzing",
        "--no-color",
        "--generation-database=none",
    )
    where = f"{service.connection.url}/openapi.json"
    return run(
        PROGRAM, "--config-file", CONFIG, "run", where, *words, env=secret, cwd=room, check=False, timeout=seconds
    )
