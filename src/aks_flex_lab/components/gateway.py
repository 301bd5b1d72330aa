"""Forwards a loopback port of the host into the cloud's network namespace.

`python -m aks_flex_lab.components.gateway --listen 6443 --namespace FILE --to 198.18.0.10:443`. The process opens
its socket on the host, then enters the namespace and connects from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab import network
from aks_flex_lab.errors import HostError
from aks_flex_lab.files import write_atomically
from aks_flex_lab.kernel.namespaces import enter_namespace
from aks_flex_lab.supervisor import LabComponent

if TYPE_CHECKING:
    from aks_flex_lab.kernel.namespaces import NetworkNamespace
    from aks_flex_lab.layout import LabLayout

CHUNK = 1 << 16


def choose_port(layout: LabLayout, preferred: int | None, *, alive: bool, name: str = "gateway") -> int:
    """Returns the port: the requested one, or the one of the last start, or a free one."""
    record = _port_file(layout, name)
    before: int | None = json.loads(record.read_text()) if record.exists() else None
    if before and preferred in {None, before}:
        return before if alive else _free_port(before)
    return _free_port(preferred or 0)


def save_port(layout: LabLayout, port: int, name: str = "gateway") -> None:
    write_atomically(_port_file(layout, name), json.dumps(port))


def read_port(layout: LabLayout, name: str) -> int:
    """Returns the port of a running gateway."""
    return int(json.loads(_port_file(layout, name).read_text()))


def _port_file(layout: LabLayout, name: str) -> Path:
    return layout.home / f"{name}.json"


def _free_port(port: int) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise HostError(
                "port-in-use",
                f"Port {port} of this machine's loopback address is in use: {error.strerror}.",
                "Select another port with `aks-flex-lab up --api-port PORT`.",
            ) from error
        return int(probe.getsockname()[1])


def gateway_component(
    cloud: NetworkNamespace, port: int, name: str = "gateway", to: str = network.API
) -> LabComponent:
    argv = (
        *(sys.executable, "-m", __name__),
        f"--listen={port}",
        f"--namespace={cloud.path}",
        f"--to={to}:443",
    )

    def ready() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    return LabComponent(name, argv, f"https://127.0.0.1:{port}", ready)


async def _copy_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def serve(listener: socket.socket, host: str, port: int) -> None:
    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy_stream(reader, back), _copy_stream(there, writer))

    server = await asyncio.start_server(forward, sock=listener)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", type=int, required=True)
    parser.add_argument("--namespace", type=Path, required=True)
    parser.add_argument("--to", required=True)
    arguments = parser.parse_args()
    listener = socket.create_server(("127.0.0.1", arguments.listen))
    enter_namespace(arguments.namespace)
    host, _, port = arguments.to.rpartition(":")
    asyncio.run(serve(listener, host, int(port)))


if __name__ == "__main__":
    main()
