"""Which service a command speaks to, and as whom: flags, else the environment, else the service on this machine."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from aks_flex_node.errors import CommandUsageError, ConfigError
from aks_flex_node.rp import presence, private_files
from aks_flex_node.rp.arm.ids import ClusterId, cluster_id
from aks_flex_node.rp.cli import options, stores
from aks_flex_node.rp.cli.options import Config, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.rp.client import Connection, ServiceClient
    from aks_flex_node.rp.settings import ServiceSettings

URL, CA, TOKEN, CLUSTER = "AKS_FLEX_RP_URL", "AKS_FLEX_RP_CA", "AKS_FLEX_RP_TOKEN_FILE", "AKS_FLEX_RP_CLUSTER"

Url = Annotated[
    str | None, typer.Option("--url", help=f"The service, https://host:port; else {URL}, else the one here.")
]
Ca = Annotated[Path | None, typer.Option("--ca", help=f"Its CA certificate (PEM); else {CA}.")]
TokenFile = Annotated[
    str | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        help=f"A bearer token or admin key; `-` for standard input; else {TOKEN}.",
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        "-c",
        envvar=CLUSTER,
        metavar="CLUSTER",
        help="The cluster's ARM id; its name, or nothing, where the service here knows just one such.",
    ),
]


OPTIONS: dict[str, Any] = {"url": Url, "ca": Ca, "token_file": TokenFile, "config": Config, "state": State}


def speaking(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which it finds its service; it takes them as one argument, `reached`."""
    own = inspect.signature(command, eval_str=True)
    asked = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in OPTIONS.items()
    ]
    kept = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in own.parameters.values()
        if each.name != "reached"
    ]

    def run(**words: Any) -> None:
        command(reached=Reached(**{name: words.pop(name) for name in OPTIONS}), **words)

    run.__doc__, run.__name__ = command.__doc__, command.__name__
    run.__annotations__ = {each.name: each.annotation for each in (*kept, *asked)}
    run.__signature__ = own.replace(parameters=[*kept, *asked])  # type: ignore[attr-defined]
    return run


@dataclass(frozen=True)
class Reached:
    """How this command gets to the service."""

    url: str | None = None
    ca: Path | None = None
    token_file: str | None = None
    config: Path | None = None
    state: Path | None = None

    def client(self) -> ServiceClient:
        from aks_flex_node.rp.client import ServiceClient

        return ServiceClient(self.connection())

    def connection(self) -> Connection:
        from aks_flex_node.rp.client import Connection

        url = self.url or os.environ.get(URL)
        ca = self.ca or _path(os.environ.get(CA))
        file = self.token_file or os.environ.get(TOKEN)
        settings = options.load(self.config, self.state)
        found = presence.look(settings.state_dir)
        if url and not (found and found.url == url.rstrip("/")):
            return Connection(_checked(url), _token(_needed(file)), _readable(ca))
        return Connection(
            found.url if found else settings.origin,
            _token(file) if file else _own_key(settings),
            _readable(ca) or _own_ca(settings),
            _here(found.host, found.port) if found else _here(settings.host, settings.port),
        )

    def cluster(self, text: str) -> ClusterId:
        """An id as it is; a name, when the service on this machine knows it."""
        known = cluster_id(text)
        if known:
            return known
        settings = options.load(self.config, self.state)
        if self.url and presence.look(settings.state_dir) is None:
            raise CommandUsageError(
                "cluster-id-needed",
                "A service on another machine needs the whole id of the cluster.",
                f"Give it with --cluster, or once and for all as {CLUSTER}.",
            )
        cluster = stores.chosen(asyncio.run(stores.clusters(settings)), text)
        return cluster_id(cluster.id) or ClusterId("", "", cluster.id)


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
        "token-needed",
        "A service on another machine needs to know who asks.",
        f"Give a file with a bearer token: --token-file, or {TOKEN}. `-` reads standard input.",
    )


def read_private(file: str) -> str:
    """A secret from a file that only its owner reads, or from standard input."""
    content = sys.stdin.buffer.read() if file == "-" else private_files.read(Path(file))
    return content.decode(errors="replace").strip()


def _token(file: str) -> str:
    token = read_private(file)
    if token and token.isascii() and token.isprintable() and " " not in token:
        return token
    what = "Standard input" if file == "-" else file
    raise ConfigError("token-invalid", f"{what} holds no token.", "It must be the token alone, on one line.")


def _readable(file: Path | None) -> Path | None:
    if file is not None and not os.access(file, os.R_OK):
        raise ConfigError("ca-file-unreadable", f"{file} cannot be read.", "Check --ca.")
    return file


def _own_key(settings: ServiceSettings) -> str:
    from aks_flex_node.rp.auth.keys import EVERYBODY

    if not settings.admin_key_file.exists():
        raise ConfigError(
            "service-not-here",
            f"There is no service in {settings.state_dir}, and no other is named.",
            "Start one with `aks-flex-rp serve`, name its directory with --state, or another service with --url.",
        )
    return private_files.read(settings.admin_key_file, EVERYBODY).decode(errors="replace").strip()
