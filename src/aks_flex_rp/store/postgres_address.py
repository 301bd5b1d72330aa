"""Address of the PostgreSQL database, and the TLS with which it is reached.

An attacker on the network between the service and its database could read and change everything, so a server that
is reached over the network must prove its name (`sslmode=verify-full`). A Unix socket needs no TLS.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from aks_flex_rp.store.model import StoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)
SOCKET_DIRECTORIES = ("/run/postgresql", "/var/run/postgresql", "/tmp")  # noqa: S108 - where PostgreSQL creates them
VERIFIED = "verify-full"
TLS_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
TLS_VARIABLES = {
    "sslmode": "PGSSLMODE",
    "sslrootcert": "PGSSLROOTCERT",
    "sslcert": "PGSSLCERT",
    "sslkey": "PGSSLKEY",
    "sslcrl": "PGSSLCRL",
    "ssl_min_protocol_version": "PGSSLMINPROTOCOLVERSION",
}
TLS_PARAMETERS = {*TLS_VARIABLES, "sslpassword"}
SECRET_PARAMETERS = {"password", "sslpassword"}
# Parameters of libpq that restrict a connection, and that the driver does not know.
UNSUPPORTED = {"channel_binding", "gssencmode", "require_auth", "requirepeer", "requiressl", "service"}


@dataclass(frozen=True)
class PostgresAddress:
    """What the driver needs to connect."""

    dsn: str = field(repr=False)
    tls: ssl.SSLContext | bool | None = False  # None: as the address says, also without verification
    hosts: tuple[str, ...] | None = None  # if the address names none

    def connect_options(self) -> dict[str, Any]:
        """Returns the arguments of the driver's functions."""
        options: dict[str, Any] = {"dsn": self.dsn, "ssl": self.tls}
        return {**options, "host": list(self.hosts)} if self.hosts else options


def parse_address(text: str, env: Mapping[str, str], *, insecure: bool = False) -> PostgresAddress:
    """Parses an address. Unless `insecure`, a server on the network is verified, or the address refused."""
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme not in {"postgresql", "postgres"}:
        raise _invalid("it does not begin with postgresql://")
    if refused := sorted(name for name in query if _is_unsupported(name)):
        raise _invalid(f"the parameter {refused[0]} is not supported")
    hosts = _hosts(parts.netloc, query) or tuple(filter(None, env.get("PGHOST", "").split(",")))
    is_local = all(each.startswith("/") for each in hosts)
    if insecure and not is_local:
        log.warning(
            "databaseInsecure is set: the connection to PostgreSQL is not protected, and anyone on the network "
            "between can read and change the database. Remove the setting when the server has a certificate."
        )
        return PostgresAddress(text, None)
    rest = {name: value for name, value in query.items() if name not in TLS_PARAMETERS}
    dsn = parts._replace(query=urlencode(rest)).geturl()
    if is_local:
        return PostgresAddress(dsn, tls=False, hosts=None if hosts else SOCKET_DIRECTORIES)
    settings = {name: env[variable] for name, variable in TLS_VARIABLES.items() if env.get(variable)} | query
    mode = settings.get("sslmode", VERIFIED)
    if mode != VERIFIED:
        raise tls_required(f"sslmode={mode} does not verify the server")
    return PostgresAddress(dsn, _context(settings))


def without_secrets(text: str) -> str:
    """Returns the address without passwords, for messages."""
    parts = urlsplit(text)
    user, at, hosts = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in parse_qsl(parts.query) if name not in SECRET_PARAMETERS]
    return parts._replace(netloc=f"{user.partition(':')[0]}{at}{hosts}", query=urlencode(shown, safe="/")).geturl()


def tls_required(why: str) -> StoreError:
    return StoreError(
        "database-tls-required",
        f"The connection to the PostgreSQL database would not be safe: {why}.",
        "Give the server a certificate, and set sslmode=verify-full and sslrootcert=FILE in the address. On the same "
        "host, use its Unix socket: host=/run/postgresql. On a network that you trust, set `databaseInsecure: true`.",
    )


def tls_failure(error: BaseException) -> StoreError | None:
    """Returns the error for a server that has no TLS or cannot prove its name, or None for another failure."""
    if isinstance(error, ssl.SSLError):
        return tls_required(f"the server is not verified ({getattr(error, 'verify_message', '') or error.reason})")
    if isinstance(error, ConnectionError) and "rejected SSL upgrade" in str(error):
        return tls_required("the server does not offer TLS")
    return None


def _hosts(netloc: str, query: Mapping[str, str]) -> tuple[str, ...]:
    listed = unquote(netloc.rpartition("@")[2]) or query.get("host", "")
    return tuple(each if each.startswith("/") else each.partition(":")[0] for each in listed.split(",") if each)


def _is_unsupported(name: str) -> bool:
    known = name in TLS_PARAMETERS or name == "sslnegotiation"
    return name in UNSUPPORTED or (name.startswith("ssl") and not known)


def _context(settings: Mapping[str, str]) -> ssl.SSLContext:
    """Creates the context from the parameters of the address. The system's CAs apply if none is named."""
    root = settings.get("sslrootcert", "system")
    try:
        context = ssl.create_default_context(cafile=None if root == "system" else root)
        if crl := settings.get("sslcrl"):
            context.load_verify_locations(cafile=crl)
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_CHAIN
        if certificate := settings.get("sslcert"):
            # A function, because a missing password would be asked for at the terminal.
            context.load_cert_chain(certificate, settings.get("sslkey"), lambda: settings.get("sslpassword", ""))
        elif "sslkey" in settings:
            raise _invalid("sslkey is set without sslcert")
    except (OSError, ValueError) as error:
        files = [
            f"{name}={settings[name]}" for name in ("sslrootcert", "sslcrl", "sslcert", "sslkey") if name in settings
        ]
        raise _invalid(f"cannot load {', '.join(files)}: {error}") from error
    if version := settings.get("ssl_min_protocol_version"):
        if version not in TLS_VERSIONS:
            raise _invalid(f"ssl_min_protocol_version={version} is not one of {', '.join(TLS_VERSIONS)}")
        context.minimum_version = TLS_VERSIONS[version]
    return context


def _invalid(why: str) -> StoreError:
    return StoreError(
        "database-address-invalid",
        f"The address of the PostgreSQL database cannot be used: {why}.",
        "Correct the address in `databaseFile`, `database` or `AKS_FLEX_RP_DATABASE`.",
    )
