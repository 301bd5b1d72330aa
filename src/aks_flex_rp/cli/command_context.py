"""Shared options of commands, access to the local store, and the connection to a service.

The connection comes from options, the environment, or the service on this host.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias
from urllib.parse import urlsplit

import typer

from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp import DEFAULT_CONFIG_FILE
from aks_flex_rp.cli import output

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aks_flex_rp.api_client import Resource, ServiceClient, ServiceConnection
    from aks_flex_rp.arm.ids import ClusterId
    from aks_flex_rp.settings import ServiceSettings
    from aks_flex_rp.store.base import Store
    from aks_flex_rp.store.model import Cluster


# With `readable=False`, a path without access results in an error of the catalogue instead of a usage error.
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        readable=False,
        help=f"Configuration file of the service. Default: {DEFAULT_CONFIG_FILE}.",
    ),
]
StateOption = Annotated[
    Path | None, typer.Option("--state", metavar="DIR", readable=False, help="State directory of the service.")
]
NameOption = Annotated[str, typer.Option("--name", "-n", metavar="NAME", help="Name of the node.")]
PoolName = Annotated[str, typer.Option("--pool", metavar="POOL", help="Name of the pool.")]
AllowDowngrade = Annotated[bool, typer.Option("--allow-downgrade", help="Allow older versions than the nodes have.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def load_settings(config: Path | None, state: Path | None, **flags: object) -> ServiceSettings:
    """Loads the settings. Options override the environment, the environment overrides the file."""
    from aks_flex_rp import settings

    overrides = {**flags, "stateDir": str(state) if state else None}
    return settings.load(
        config, os.environ, **{name: value for name, value in overrides.items() if value is not None}
    )


@asynccontextmanager
async def open_local_store(settings: ServiceSettings, *, make: bool = False) -> AsyncIterator[Store]:
    """Opens the database of the local service. Creates a missing SQLite database only with `make`."""
    from aks_flex_rp import raw_database
    from aks_flex_rp.service import open_store

    if not make and not raw_database.postgres_address(settings):
        raw_database.require_file(settings.sqlite_file)
    store = open_store(settings)
    await store.start()
    try:
        yield store
    finally:
        await store.stop()


async def migrate_schema(settings: ServiceSettings) -> None:
    """Migrates the database schema, which opening a store does, and checks that the database responds."""
    async with open_local_store(settings, make=True) as store:
        await store.count_nodes()


async def list_clusters(settings: ServiceSettings) -> tuple[Cluster, ...]:
    async with open_local_store(settings) as store:
        return await known_clusters(store)


async def known_clusters(store: Store) -> tuple[Cluster, ...]:
    """Returns all clusters. Raises the error of one that is refused if there is no other."""
    found = await store.clusters()
    for key in () if found else await store.cluster_keys():
        await store.cluster(key)
    return found


def cluster_name(cluster: Cluster) -> str:
    from aks_flex_rp.arm.ids import parse_cluster_id

    known = parse_cluster_id(cluster.id)
    return known.name if known else cluster.id


def choose_cluster(known: tuple[Cluster, ...], text: str) -> Cluster:
    """Returns the cluster with this ID or name, or the only cluster when the text is empty."""
    key = text.lower().rstrip("/")
    matching = [each for each in known if key in {"", each.key, cluster_name(each).lower()}]
    if len(matching) == 1:
        return matching[0]
    problem = f"The cluster {text!r} was not found." if text else "No cluster was specified."
    if matching:
        problem = (
            f"The name {text!r} matches several clusters."
            if text
            else "Several clusters exist and none was specified."
        )
    ids = "\n".join(f"  {each.id}" for each in known)
    hint = "Specify the full ID with `--cluster`." if known else "Add a cluster with `aks-flex-rp cluster add`."
    raise ConfigError(
        "cluster-not-found",
        f"{problem} Known clusters:\n{ids}" if known else f"{problem} The service has no clusters.",
        hint,
    )


URL_VARIABLE, CA_VARIABLE, TOKEN_VARIABLE, CLUSTER_VARIABLE = (
    "AKS_FLEX_RP_URL",
    "AKS_FLEX_RP_CA",
    "AKS_FLEX_RP_TOKEN_FILE",
    "AKS_FLEX_RP_CLUSTER",
)

Url = Annotated[
    str | None,
    typer.Option("--url", metavar="URL", help=f"URL of the service. Default: {URL_VARIABLE}, or the local service."),
]
Ca = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", readable=False, help=f"CA certificate of the service (PEM). Default: {CA_VARIABLE}."
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"File with a bearer token or admin key, `-` for stdin. Default: {TOKEN_VARIABLE}.",
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        envvar=CLUSTER_VARIABLE,
        metavar="CLUSTER",
        help="ARM ID or name of the cluster. Optional with one cluster.",
    ),
]


Command: TypeAlias = Callable[..., None]


def with_options(kind: Callable[..., Any], receiver: str, command: Command) -> Command:
    own = inspect.signature(command, eval_str=True)
    shared = list(inspect.signature(kind, eval_str=True).parameters.values())
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in (*own.parameters.values(), *shared)
        if each.name != receiver
    ]

    def run(**arguments: Any) -> None:
        options = kind(**{each.name: arguments.pop(each.name) for each in shared})
        command(**{receiver: options}, **arguments)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


class CommandOptions:
    config: Path | None
    state: Path | None
    json: bool

    @cached_property
    def settings(self) -> ServiceSettings:
        return load_settings(self.config, self.state)

    def print_result(self, text: str, document: Any, *, ascii_only: bool = False) -> None:
        output.print_result(text, document, self.json, ascii_only=ascii_only)


@dataclass(frozen=True)
class LocalOptions(CommandOptions):
    """Options of a command that uses the files and the database of the service on this host."""

    config: ConfigOption = None
    state: StateOption = None
    json: JsonOption = False


@dataclass(frozen=True)
class ServiceOptions(CommandOptions):
    """Options of a command of the API: the cluster, the output, and the connection."""

    cluster: ClusterName = ""
    json: JsonOption = False
    url: Url = None
    ca: Ca = None
    token_file: TokenFile = None
    config: ConfigOption = None
    state: StateOption = None

    @cached_property
    def client(self) -> ServiceClient:
        """The client of the service."""
        from aks_flex_rp.api_client import ServiceClient

        return ServiceClient(self.connection())

    @property
    def nodes(self) -> Resource:
        """The nodes of the cluster."""
        return self._collection("flexNodeConfig")

    @property
    def pools(self) -> Resource:
        """The pools of the cluster."""
        return self._collection("flexNodePools")

    def _collection(self, name: str) -> Resource:
        from aks_flex_rp.api_client import Resource

        return Resource(self.client, f"{self.target}/{name}")

    def connection(self) -> ServiceConnection:
        """Resolves URL, credential and CA from options, environment, and the service on this host."""
        from aks_flex_rp import instance_lock
        from aks_flex_rp.api_client import ServiceConnection

        url = self.url or os.environ.get(URL_VARIABLE)
        ca = self.ca or (Path(file) if (file := os.environ.get(CA_VARIABLE)) else None)
        file = self.token_file or os.environ.get(TOKEN_VARIABLE)
        settings = self.settings
        found = instance_lock.find_running(settings.state_dir)
        if url and not (found and found.url == url.rstrip("/")):
            return ServiceConnection(_checked(url), _token(_needed(file), url), _readable(ca))
        own = found.url if found else settings.origin
        return ServiceConnection(
            own,
            _token(file, own) if file else _own_key(settings),
            _readable(ca) or _own_ca(settings),
            _here(found.host, found.port) if found else _here(settings.host, settings.port),
        )

    @cached_property
    def target(self) -> ClusterId:
        """The cluster of an ID, or of a name that the service on this host knows, or its only cluster."""
        import asyncio

        from aks_flex_rp import instance_lock
        from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id

        if known := parse_cluster_id(self.cluster):
            return known
        if self.url and instance_lock.find_running(self.settings.state_dir) is None:
            raise CommandUsageError(
                "cluster-id-required",
                "A remote service requires the full ID of the cluster.",
                f"Set `--cluster`, or the environment variable {CLUSTER_VARIABLE}.",
            )
        cluster = choose_cluster(asyncio.run(list_clusters(self.settings)), self.cluster)
        return parse_cluster_id(cluster.id) or ClusterId("", "", cluster.id)


# Decorators that add these options to a command, which receives them as one argument: `local` or `service`.
with_settings = partial(with_options, LocalOptions, "local")
with_service = partial(with_options, ServiceOptions, "service")


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url.rstrip("/")
    raise CommandUsageError("service-url-invalid", f"{url!r} is not a valid service URL.", "Use https://HOST:PORT.")


def _here(host: str, port: int) -> tuple[str, int]:
    """Returns the local address of a service that listens on this host and port."""
    return ("127.0.0.1" if host in {"0.0.0.0", "::"} else host), port  # noqa: S104 - compared, not bound


def _own_ca(settings: ServiceSettings) -> Path | None:
    """Returns the CA of the local service, unless it uses a certificate from the settings."""
    own = settings.state_dir / "tls" / "ca.crt"
    return own if own.exists() and settings.tls.certificate_file is None else None


def _needed(file: str | None) -> str:
    if file:
        return file
    raise CommandUsageError(
        "access-token-required",
        "A remote service requires a credential.",
        f"Set `--token-file` or {TOKEN_VARIABLE} to a file with a bearer token, or `-` for standard input.",
    )


def read_secret(file: str) -> str:
    """Reads a secret from standard input, or from a file that only its owner can read."""
    from aks_flex_rp import private_files

    content = sys.stdin.buffer.read() if file == "-" else private_files.read(Path(file))
    return content.decode(errors="replace").strip()


def _token(file: str, url: str) -> str:
    """Reads a token for the service at this URL. Refuses one that another service may accept, such as Azure."""
    from aks_flex_node.api.audiences import may_send_token, token_audiences

    token = read_secret(file)
    for audience in token_audiences(token):
        if not may_send_token(audience, url):
            raise ConfigError(
                "access-token-for-azure",
                f"The token is for {audience}. It is not sent to {url}, which could use it at another service.",
                "Get a token for the service: `az account get-access-token --resource AUDIENCE`, with the audience "
                "in the service's settings (auth.tenants[].audiences).",
            )
    if token and token.isascii() and token.isprintable() and " " not in token:
        return token
    source = "Standard input" if file == "-" else file
    raise ConfigError(
        "access-token-invalid", f"{source} does not contain a valid token.", "Provide only the token, on one line."
    )


def _readable(file: Path | None) -> Path | None:
    if file is not None and not os.access(file, os.R_OK):
        raise ConfigError("ca-file-unreadable", f"{file} cannot be read.", "Check `--ca`.")
    return file


def _own_key(settings: ServiceSettings) -> str:
    from aks_flex_rp import private_files
    from aks_flex_rp.auth.admin_key import WORLD_ACCESS

    if not settings.admin_key_file.exists():
        raise ConfigError(
            "service-not-local",
            f"No service was found in {settings.state_dir}, and no URL was specified.",
            "Start a service with `aks-flex-rp serve`, set its directory with `--state`, or set `--url`.",
        )
    return private_files.read(settings.admin_key_file, WORLD_ACCESS).decode(errors="replace").strip()
