"""A real Azurite on loopback with TLS and one account."""

from __future__ import annotations

import base64
import os
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jwt
from azure.core.credentials import AccessToken

from aks_flex_lab.processes import run, spawn
from aks_flex_rp.crypto.tls_certificates import PrivateCa
from tests.service.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).parents[4] / "scripts" / "azurite"
ACCOUNT = "flextest"
SECONDS = 60


@dataclass(frozen=True)
class Azurite:
    url: str  # of the account
    authority: Path
    key: str

    @property
    def connection_string(self) -> str:
        parts = ("DefaultEndpointsProtocol=https", f"AccountName={ACCOUNT}", f"AccountKey={self.key}")
        return ";".join((*parts, f"BlobEndpoint={self.url};"))


class Somebody:
    """A credential with tokens that Azurite accepts: it checks their format and not their signature."""

    def get_token(self, *_: str, **__: object) -> AccessToken:
        end = int(time.time()) + 3600
        claims = {
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000001/",
            "aud": "https://storage.azure.com",
            "oid": "00000000-0000-0000-0000-000000000002",
            "tid": "00000000-0000-0000-0000-000000000001",
            "nbf": end - 3600,
            "iat": end - 3600,
            "exp": end,
        }
        return AccessToken(jwt.encode(claims, "a key that nobody checks, long enough"), end)


@contextmanager
def azurite_server(room: Path) -> Iterator[Azurite]:
    run(SCRIPT, "install", timeout=600)
    own, port, key = PrivateCa(room / "tls", ("localhost",)), free_port(), base64.b64encode(os.urandom(64)).decode()
    own.current(time.time())
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(room / "data"))
    how = ("--cert", str(own.server_file), "--key", str(own.server_file), "--oauth", "basic", "--silent")
    log = room / "log"
    env = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
    env |= {name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ}  # its installation
    process = spawn((SCRIPT, *where, *how, "--disableProductStyleUrl"), log=log, env=env)
    try:
        end = time.monotonic() + SECONDS
        while "successfully listens" not in (log.read_text() if log.exists() else ""):
            assert process.alive, log.read_text()
            assert time.monotonic() < end, "Azurite did not start"
            time.sleep(0.05)
        yield Azurite(f"https://localhost:{port}/{ACCOUNT}", own.public_file, key)
    finally:
        process.stop()
