"""Commands `init` and `serve`: prepare and run the service."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aks_flex_node.errors import BusyError
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, LocalOptions, StateOption, with_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_rp.instance_lock import InstanceLock
    from aks_flex_rp.service import Service
    from aks_flex_rp.settings import ServiceSettings

LogFormat = Literal["json", "text"]


@with_settings
def init(local: LocalOptions) -> None:
    """Create keys, certificates, admin key and database.

    Existing files are kept. `serve` also creates missing files.
    """
    import asyncio

    settings = local.settings
    files = {
        "keys": (settings.keys, "encryption keys"),
        "adminKey": (settings.admin_key_file, "admin key for the CLI and the API"),
        "ca": (settings.state_dir / "tls" / "ca.crt", "CA certificate of the service"),
        "database": (settings.sqlite_file, "database"),
    }
    existing = {name for name, (file, _) in files.items() if file.exists()}
    asyncio.run(_prepare(settings))
    paths = {name: str(file) for name, (file, _) in files.items() if file.exists()}
    rows = [("exists" if name in existing else "created", files[name][1], paths[name]) for name in paths]
    table = output.format_table(rows, ("STATUS", "ITEM", "PATH"))
    local.print_result(table, {"stateDir": str(settings.state_dir), **paths})
    output.print_note("Next: run `aks-flex-rp serve`. Back up the keys: without them no secret can be decrypted.")


async def _prepare(settings: ServiceSettings) -> None:
    from aks_flex_rp.service import Service

    service = Service(settings)
    service.admin_key.ensure()
    await service.store.start()
    await service.store.stop()


def serve(
    config: ConfigOption = None,
    state: StateOption = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS:PORT", help="Address and port to listen on, for example 0.0.0.0:8443."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="Public URL of the service, https://HOST:PORT.")
    ] = None,
    log_format: Annotated[LogFormat | None, typer.Option(help="Log format. Default on a terminal: text.")] = None,
) -> None:
    """Run the service.

    Runs with local defaults if no configuration exists, and prints the next steps.
    """
    settings = command_context.load_settings(config, state, listen=listen, publicUrl=url)
    if sys.stderr.isatty():
        output.print_note(f"Starting with state directory {settings.state_dir} …")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    with _locked(settings) as lock, suppress(KeyboardInterrupt):
        _serve(settings, lock, log_format or _default_format(settings))


def _end(*_: object) -> None:
    """Handles SIGINT and SIGTERM until the server installs its own handlers."""
    raise KeyboardInterrupt


def _serve(settings: ServiceSettings, lock: InstanceLock | None, log_format: LogFormat) -> None:
    from aks_flex_rp import instance_lock, server

    def ready(service: Service, port: int) -> None:
        if lock:
            keys = tuple(key_ids(settings))
            lock.publish(instance_lock.RunningInstance(settings.origin, settings.host, port, os.getpid(), keys))
        if sys.stderr.isatty():
            output.print_note(greeting(service.settings, port))
        else:
            output.print_note(f"aks-flex-rp serves {service.settings.origin}")

    server.configure_logging(settings.log.model_copy(update={"format": log_format}))
    server.serve(settings, ready)


def key_ids(settings: ServiceSettings) -> list[str]:
    """Returns the IDs of the encryption keys, newest first."""
    from aks_flex_rp.crypto import encryption

    return [each.id for each in encryption.list_keys(settings.keys, os.environ)]


@contextmanager
def _locked(settings: ServiceSettings) -> Iterator[InstanceLock | None]:
    """Locks the state directory. SQLite allows one process. Replicas with PostgreSQL can share a directory: only the
    first one holds the lock."""
    from aks_flex_rp import instance_lock

    try:
        with instance_lock.exclusive(settings.state_dir) as lock:
            yield lock
    except BusyError:
        if not settings.database and not settings.database_file:
            raise
        yield None


def _default_format(settings: ServiceSettings) -> LogFormat:
    is_set = "format" in settings.log.model_fields_set
    return "text" if sys.stderr.isatty() and not is_set else settings.log.format


def greeting(settings: ServiceSettings, port: int) -> str:
    """Returns the text with the next steps."""
    default = command_context.load_settings(None, None).state_dir
    state_option = "" if settings.state_dir == default else f" --state {settings.state_dir}"
    lines = [
        "",
        f"  aks-flex-rp serves {settings.origin}  (port {port})",
        "",
        "  In another terminal:",
        f"    aks-flex-rp cluster add CLUSTER-ID --kubeconfig FILE{state_option}",
        "        add a cluster",
        f"    aks-flex-rp node create --name edge-1{state_option}",
        "        create a node",
        f"    aks-flex-rp node join-command --name edge-1{state_option}",
        "        print the command to run on the machine",
        "",
        f"  admin key  {settings.admin_key_file}",
        f"  CA         {settings.state_dir / 'tls' / 'ca.crt'}",
        "  Stop with Ctrl-C.",
        "",
    ]
    return "\n".join(lines)
