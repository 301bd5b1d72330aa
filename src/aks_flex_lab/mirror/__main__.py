"""Starts the mirror and serves until a signal stops it."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_lab.errors import LabError, UsageError
from aks_flex_lab.mirror.control import listen_for_control
from aks_flex_lab.mirror.fault_rules import FaultRuleTable
from aks_flex_lab.mirror.server import MirrorState, listen, server_tls_context, write_log
from aks_flex_lab.network import parse_address

if TYPE_CHECKING:
    from collections.abc import Sequence

STOP_SIGNALS = {signal.SIGTERM, signal.SIGINT}


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mirror", description="Serve publishers' URLs from a directory.")
    for name in ("root", "cert", "key", "control"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--listen", type=parse_address, required=True)
    parser.add_argument("--plain", type=parse_address)  # without TLS
    return parser.parse_args(argv)


def serve(options: argparse.Namespace) -> None:
    if not options.root.is_dir():
        raise UsageError(
            "mirror-directory-missing",
            f"{options.root} is not a directory that the mirror can serve.",
            "Run `aks-flex-lab up`, which packs the artifacts again and starts the mirror.",
        )
    state = MirrorState(options.root.resolve(), FaultRuleTable())
    servers = [listen(options.listen, state, server_tls_context(options.cert, options.key))]
    if options.plain:
        servers.append(listen(options.plain, state, None))
    # The main thread waits for signals. They are blocked before the first thread starts, so that no thread gets one.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
    # The control socket is created last: when it exists, the mirror serves.
    with listen_for_control(options.control, state) as control:
        threading.Thread(target=control.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
        write_log(
            f"serving {options.root} on {', '.join(f'{each.server_name}:{each.server_port}' for each in servers)}"
        )
        ending = signal.sigwait(STOP_SIGNALS)
    write_log(f"stopped by {signal.Signals(ending).name}")


def main() -> int:
    try:
        serve(arguments(sys.argv[1:]))
    except LabError as error:
        print(f"error: {error.name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
