"""Runs `aks-flex-rp serve` in a process, with a trusted tenant."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_lab.processes import ProcessHandle, resident_bytes, run, spawn
from aks_flex_rp.store.sqlite import SqliteStore
from bench.rp_load.connections import Server, cpu_seconds
from tests.service.ports import accepts, free_port
from tests.service.rp.api.tenants import running_tenant
from tests.service.rp.store.builders import record_authenticator, write_keys
from tests.unit.rp.auth.token_issuer import curve_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.rp_load.client import LoadTask
    from tests.service.rp.api.tenants import Tenant

ROOT = Path(__file__).parents[2]
CHECKOUT_ENVIRONMENT = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}  # this checkout, not an installed package
# One operator writes faster than the default rate limit allows; nodes poll within their limits.
LIMITS = {"writesPerSecond": 1_000_000, "writeBurst": 1_000_000}
OPERATOR_LIMITS = {**LIMITS, "readsPerSecond": 1_000_000, "readBurst": 1_000_000}  # also for the reads of one user


@dataclass(frozen=True)
class RunningService:
    process: ProcessHandle
    server: Server
    state: Path

    @property
    def mebibytes(self) -> float:
        return resident_bytes([self.process.pid]) / 2**20

    @property
    def admin(self) -> str:
        return (self.state / "admin.key").read_text().strip()

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.process.pid,)

    @property
    def cpu_seconds(self) -> float:
        return cpu_seconds(self.pids)


@contextmanager
def temporary_tenant() -> Iterator[tuple[Path, Tenant]]:
    """Yields a temporary directory for services, and a tenant that they can trust."""
    with tempfile.TemporaryDirectory() as name:
        authority = CertificateAuthority(Path(name) / "pki")
        authority.ensure()
        with running_tenant(authority) as tenant:
            yield Path(name), tenant


@contextmanager
def running_service(
    state: Path,
    tenant: Tenant,
    database: str = "",
    program: Sequence[str] = (),
    *,
    limits: Mapping[str, int] = LIMITS,
) -> Iterator[RunningService]:
    port, state = free_port(), state.absolute()
    state.mkdir(mode=0o700, exist_ok=True)
    write_keys(state)
    settings: dict[str, Any] = {
        "listen": f"127.0.0.1:{port}",
        "publicUrl": f"https://127.0.0.1:{port}",
        "stateDir": str(state),
        "auth": {"tenants": [tenant.settings.model_dump(mode="json", by_alias=True)]},
        "limits": dict(limits),
    }
    config = state / f"config-{port}.yaml"
    config.write_text(json.dumps(settings | ({"database": database} if database else {})))
    command = program or ("-m", "aks_flex_rp", "serve")
    process = spawn(
        (sys.executable, *command, "--config", config), log=state / f"log-{port}", env=CHECKOUT_ENVIRONMENT
    )
    try:
        _wait(process, port, state / f"log-{port}")
        yield RunningService(process, Server("127.0.0.1", port, str(state / "tls" / "ca.crt"), "127.0.0.1"), state)
    finally:
        process.stop(30)


def _wait(process: ProcessHandle, port: int, log: Path) -> None:
    end = time.monotonic() + 60
    while not accepts(port):
        if not process.alive or time.monotonic() > end:
            raise SystemExit(f"The service did not start: {log.read_text()}")
        time.sleep(0.02)


def sqlite(state: Path) -> SqliteStore:
    """Opens the store of a service that is not running."""
    state.mkdir(mode=0o700, exist_ok=True)
    return SqliteStore(state / "flex.db", record_authenticator())


def fast_signing(tenant: Tenant) -> Tenant:
    """Returns an elliptic curve key, which signs a hundred thousand tokens in seconds."""
    tenant.issuer.keys["curve"] = curve_key("P-256")
    return tenant


def measure(task: LoadTask, directory: Path, before: Sequence[str] = (), *, expect: str = "") -> dict[str, Any]:
    """Runs the client and returns its results; `before` is a command prefix, for example to enter a namespace. Ends
    the program if a response has another status than expected.
    """
    argv, result = command(task, directory, before)
    run(*argv, env=CHECKOUT_ENVIRONMENT, timeout=900)
    found: dict[str, Any] = json.loads(result.read_text())
    if expect and set(found["statuses"]) != {expect}:
        raise SystemExit(f"{task.server.name} returned {found['statuses']} to {Path(task.requests).name}.")
    return found


def start_client(task: LoadTask, directory: Path, before: Sequence[str] = ()) -> tuple[ProcessHandle, Path]:
    argv, result = command(task, directory, before)
    return spawn(argv, log=directory / "client.log", env=CHECKOUT_ENVIRONMENT), result


def command(task: LoadTask, directory: Path, before: Sequence[str]) -> tuple[list[str], Path]:
    written, result = directory / f"task-{time.monotonic_ns()}.json", directory / f"told-{time.monotonic_ns()}.json"
    task.write(written)
    return [*before, sys.executable, "-m", "bench.rp_load.client", str(written), str(result)], result
