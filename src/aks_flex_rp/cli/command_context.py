"""Options shared by commands, the local store, and the connection to a service: from flags, the environment, or the
service on this machine.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_rp import instance_lock, private_files, settings
from aks_flex_rp.arm.ids import ClusterId, parse_cluster_id
from aks_flex_rp.settings import ServiceSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from aks_flex_rp.api_client import ServiceClient, ServiceConnection
    from aks_flex_rp.store.model import Cluster
    from aks_flex_rp.store.protocol import Store


ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help=f"The service's configuration; {settings.DEFAULT_CONFIG_FILE} when left out."),
]
StateOption = Annotated[Path | None, typer.Option("--state", help="The service's state directory.")]
NameOption = Annotated[str, typer.Option("--name", "-n", help="Name of the node.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As JSON.")]


def load_settings(config: Path | None, state: Path | None, **flags: object) -> ServiceSettings:
    """Only what was said: the environment is weaker than a flag, and stronger than one that nobody gave."""
    overrides = {**flags, "stateDir": str(state) if state else None}
    return settings.load(
        config, os.environ, **{name: value for name, value in overrides.items() if value is not None}
    )


@asynccontextmanager
async def open_local_store(settings: ServiceSettings, *, make: bool = False) -> AsyncIterator[Store]:
    """Whoever only looks, or looks in the wrong place, leaves no empty database behind: `make` is for the others."""
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
    """Which whoever opens a store does, and see that it answers."""
    async with open_local_store(settings, make=True) as store:
        await store.count_nodes()


async def list_clusters(settings: ServiceSettings) -> tuple[Cluster, ...]:
    async with open_local_store(settings) as store:
        return await store.clusters()


def cluster_name(cluster: Cluster) -> str:
    known = parse_cluster_id(cluster.id)
    return known.name if known else cluster.id


def choose_cluster(known: tuple[Cluster, ...], text: str) -> Cluster:
    """By its id or by its name; the only one there is when nothing is said."""
    key = text.lower().rstrip("/")
    fitting = [each for each in known if key in {"", each.key, cluster_name(each).lower()}]
    if len(fitting) == 1:
        return fitting[0]
    what = f"There is no cluster {text!r}." if text else "No cluster is named."
    if fitting:
        what = f"There are several clusters {text!r}." if text else "No cluster is named, and there are several."
    ids = "\n".join(f"  {each.id}" for each in known)
    hint = "Give the whole id." if known else "Add one with `aks-flex-rp cluster add`."
    raise ConfigError("cluster-not-found", f"{what} Known:\n{ids}" if known else f"{what} None is known.", hint)


URL_VARIABLE, CA_VARIABLE, TOKEN_VARIABLE, CLUSTER_VARIABLE = (
    "AKS_FLEX_RP_URL",
    "AKS_FLEX_RP_CA",
    "AKS_FLEX_RP_TOKEN_FILE",
    "AKS_FLEX_RP_CLUSTER",
)

Url = Annotated[
    str | None, typer.Option("--url", help=f"The service, https://host:port; else {URL_VARIABLE}, else the one here.")
]
Ca = Annotated[Path | None, typer.Option("--ca", help=f"Its CA certificate (PEM); else {CA_VARIABLE}.")]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"A bearer token or admin key; `-` for standard input; else {TOKEN_VARIABLE}.",
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        envvar=CLUSTER_VARIABLE,
        metavar="CLUSTER",
        help="The cluster's ARM id; its name, or nothing, where the service here knows just one such.",
    ),
]


SERVICE_OPTIONS: dict[str, Any] = {
    "url": Url,
    "ca": Ca,
    "token_file": TokenFile,
    "config": ConfigOption,
    "state": StateOption,
}


def with_service(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which it finds its service; it takes them as one argument, `reached`."""
    own = inspect.signature(command, eval_str=True)
    service_parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in SERVICE_OPTIONS.items()
    ]
    command_parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in own.parameters.values()
        if each.name != "reached"
    ]

    def run(**arguments: Any) -> None:
        command(reached=ServiceOptions(**{name: arguments.pop(name) for name in SERVICE_OPTIONS}), **arguments)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {each.name: each.annotation for each in (*command_parameters, *service_parameters)}
    run.__signature__ = own.replace(parameters=[*command_parameters, *service_parameters])  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class ServiceOptions:
    """How this command gets to the service."""

    url: str | None = None
    ca: Path | None = None
    token_file: str | None = None
    config: Path | None = None
    state: Path | None = None

    def client(self) -> ServiceClient:
        from aks_flex_rp.api_client import ServiceClient

        return ServiceClient(self.connection())

    def connection(self) -> ServiceConnection:
        from aks_flex_rp.api_client import ServiceConnection

        url = self.url or os.environ.get(URL_VARIABLE)
        ca = self.ca or _path(os.environ.get(CA_VARIABLE))
        file = self.token_file or os.environ.get(TOKEN_VARIABLE)
        settings = load_settings(self.config, self.state)
        found = instance_lock.find_running(settings.state_dir)
        if url and not (found and found.url == url.rstrip("/")):
            return ServiceConnection(_checked(url), _token(_needed(file)), _readable(ca))
        return ServiceConnection(
            found.url if found else settings.origin,
            _token(file) if file else _own_key(settings),
            _readable(ca) or _own_ca(settings),
            _here(found.host, found.port) if found else _here(settings.host, settings.port),
        )

    def cluster(self, text: str) -> ClusterId:
        """An id as it is; a name, when the service on this machine knows it."""
        known = parse_cluster_id(text)
        if known:
            return known
        settings = load_settings(self.config, self.state)
        if self.url and instance_lock.find_running(settings.state_dir) is None:
            raise CommandUsageError(
                "cluster-id-required",
                "A service on another machine needs the whole id of the cluster.",
                f"Give it with --cluster, or once and for all as {CLUSTER_VARIABLE}.",
            )
        cluster = choose_cluster(asyncio.run(list_clusters(settings)), text)
        return parse_cluster_id(cluster.id) or ClusterId("", "", cluster.id)


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _checked(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return url.rstrip("/")
    raise CommandUsageError("service-url-invalid", f"{url!r} is no address of a service.", "Write https://host:port.")


def _here(host: str, port: int) -> tuple[str, int]:
    """Where a service that listens so is asked on its own machine."""
    return ("127.0.0.1" if host in {"0.0.0.0", "::"} else host), port  # noqa: S104 - compared, not bound


def _own_ca(settings: ServiceSettings) -> Path | None:
    """The service's own, unless it shows a certificate that somebody else made."""
    own = settings.state_dir / "tls" / "ca.crt"
    return own if own.exists() and settings.tls.certificate_file is None else None


def _needed(file: str | None) -> str:
    if file:
        return file
    raise CommandUsageError(
        "access-token-required",
        "A service on another machine needs to know who asks.",
        f"Give a file with a bearer token: --token-file, or {TOKEN_VARIABLE}. `-` reads standard input.",
    )


def read_secret(file: str) -> str:
    """A secret from a file that only its owner reads, or from standard input."""
    content = sys.stdin.buffer.read() if file == "-" else private_files.read(Path(file))
    return content.decode(errors="replace").strip()


def _token(file: str) -> str:
    token = read_secret(file)
    if token and token.isascii() and token.isprintable() and " " not in token:
        return token
    what = "Standard input" if file == "-" else file
    raise ConfigError("access-token-invalid", f"{what} holds no token.", "It must be the token alone, on one line.")


def _readable(file: Path | None) -> Path | None:
    if file is not None and not os.access(file, os.R_OK):
        raise ConfigError("ca-file-unreadable", f"{file} cannot be read.", "Check --ca.")
    return file


def _own_key(settings: ServiceSettings) -> str:
    from aks_flex_rp.auth.admin_key import WORLD_ACCESS

    if not settings.admin_key_file.exists():
        raise ConfigError(
            "service-not-local",
            f"There is no service in {settings.state_dir}, and no other is named.",
            "Start one with `aks-flex-rp serve`, name its directory with --state, or another service with --url.",
        )
    return private_files.read(settings.admin_key_file, WORLD_ACCESS).decode(errors="replace").strip()
