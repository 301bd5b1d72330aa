"""Commands `init` and `serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from aks_flex_node.errors import BusyError
from aks_flex_rp import instance_lock
from aks_flex_rp.cli import command_context, output
from aks_flex_rp.cli.command_context import ConfigOption, JsonOption, StateOption

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aks_flex_rp.service import Service
    from aks_flex_rp.settings import ServiceSettings

LogFormat = Literal["json", "text"]


def attach(app: typer.Typer) -> None:
    app.command()(init)
    app.command()(serve)


def init(config: ConfigOption = None, state: StateOption = None, json: JsonOption = False) -> None:
    """Make everything that `serve` needs: keys, certificates, admin key, database. What is there already stays."""
    settings = command_context.load_settings(config, state)
    files = _files(settings)
    there = {name for name, (file, _) in files.items() if file.exists()}
    asyncio.run(_prepare(settings))
    made = {name: str(file) for name, (file, _) in files.items() if file.exists()}
    rows = [("there" if name in there else "made", files[name][1], made[name]) for name in made]
    output.print_result(
        output.format_table(rows, ("", "WHAT", "WHERE")), {"stateDir": str(settings.state_dir), **made}, json
    )
    output.print_note("next: `aks-flex-rp serve`; keep a copy of the keys, without which no secret can be read again")


def _files(settings: ServiceSettings) -> dict[str, tuple[Path, str]]:
    return {
        "keys": (settings.keys, "keys that encrypt secrets"),
        "adminKey": (settings.admin_key_file, "the admin key, for `node` and the API"),
        "ca": (settings.state_dir / "tls" / "ca.crt", "the CA certificate that callers trust"),
        "database": (settings.sqlite_file, "the database"),
    }


async def _prepare(settings: ServiceSettings) -> None:
    from aks_flex_rp.service import Service

    service = Service(settings)
    service.admin_key.ensure()
    await service.store.start()
    await service.store.stop()


def serve(
    config: ConfigOption = None,
    state: StateOption = None,
    listen: Annotated[str | None, typer.Option(help="Address and port, such as 0.0.0.0:8443.")] = None,
    url: Annotated[str | None, typer.Option("--url", help="How machines reach it, https://host:port.")] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="json, or text, which it is on a terminal by itself.")
    ] = None,
) -> None:
    """Run the service. With no configuration at all it works for one machine, and says how to use it."""
    settings = command_context.load_settings(config, state, listen=listen, publicUrl=url)
    if sys.stderr.isatty():
        output.print_note(f"starting from {settings.state_dir} …")
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, _end)
    with _locked(settings) as lock, suppress(KeyboardInterrupt):
        _serve(settings, lock, log_format or _usual_format(settings))


def _end(*_: object) -> None:
    """Until the service listens to signals itself: whatever has begun ends as after Ctrl-C."""
    raise KeyboardInterrupt


def _serve(settings: ServiceSettings, lock: instance_lock.InstanceLock | None, log_format: LogFormat) -> None:
    from aks_flex_rp import server

    def ready(service: Service, port: int) -> None:
        if lock:
            keys = tuple(key_ids(settings))
            lock.publish(instance_lock.RunningInstance(settings.origin, settings.host, port, os.getpid(), keys))
        _greet(service, port)

    server.configure_logging(settings.log.model_copy(update={"format": log_format}))
    server.serve(settings, ready)


def key_ids(settings: ServiceSettings) -> list[str]:
    from aks_flex_rp.crypto import encryption

    return [each.id for each in encryption.list_keys(settings.keys, os.environ)]


@contextmanager
def _locked(settings: ServiceSettings) -> Iterator[instance_lock.InstanceLock | None]:
    """SQLite serves one process. Replicas on PostgreSQL may share a directory; the first is the one that is found."""
    try:
        with instance_lock.exclusive(settings.state_dir) as lock:
            yield lock
    except BusyError:
        if not settings.database and not settings.database_file:
            raise
        yield None


def _usual_format(settings: ServiceSettings) -> LogFormat:
    is_set = "format" in settings.log.model_fields_set
    return "text" if sys.stderr.isatty() and not is_set else settings.log.format


def _greet(service: Service, port: int) -> None:
    """For a person at a terminal; a log has no use for it."""
    if sys.stderr.isatty():
        output.print_note(greeting(service.settings, port))
    else:
        output.print_note(f"aks-flex-rp serves {service.settings.origin}")


def greeting(settings: ServiceSettings, port: int) -> str:
    where = "" if str(settings.state_dir) == _usual_state() else f" --state {settings.state_dir}"
    lines = [
        "",
        f"  aks-flex-rp serves {settings.origin}  (port {port})",
        "",
        "  in another terminal:",
        f"    aks-flex-rp cluster add CLUSTER-ID --kubeconfig FILE{where}",
        "        let it make nodes for a cluster",
        f"    aks-flex-rp node create --name edge-1{where}",
        "        describe a node",
        f"    aks-flex-rp node join-command --name edge-1{where}",
        "        the one line for the machine",
        "",
        f"  admin key  {settings.admin_key_file}",
        f"  CA         {settings.state_dir / 'tls' / 'ca.crt'}",
        "  stop with Ctrl-C",
        "",
    ]
    return "\n".join(lines)


def _usual_state() -> str:
    return str(command_context.load_settings(None, None).state_dir)
