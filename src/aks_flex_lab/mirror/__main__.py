"""Start the mirror and serve until a signal ends it."""

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
    parser.add_argument("--root", type=Path, required=True, help="the tree: ROOT/<host>/<path…>")
    parser.add_argument("--listen", type=parse_address, required=True, metavar="ADDR:PORT", help="where to speak TLS")
    parser.add_argument("--cert", type=Path, required=True, help="the certificate and its chain, PEM")
    parser.add_argument("--key", type=Path, required=True, help="the certificate's key, PEM")
    parser.add_argument("--control", type=Path, required=True, metavar="SOCKET", help="the UNIX socket for switches")
    parser.add_argument(
        "--plain", type=parse_address, metavar="ADDR:PORT", help="where to speak HTTP without TLS, too"
    )
    return parser.parse_args(argv)


def serve(options: argparse.Namespace) -> None:
    if not options.root.is_dir():
        raise UsageError("mirror-directory-missing", f"{options.root} is no directory to serve.")
    state = MirrorState(options.root, FaultRuleTable())
    servers = [listen(options.listen, state, server_tls_context(options.cert, options.key))]
    if options.plain:
        servers.append(listen(options.plain, state, None))
    # Signals are waited for, not handled, and blocked before the first thread so that no thread gets one.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for server in servers:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
    # The control socket comes last: where it is, the mirror answers.
    with listen_for_control(options.control, state) as control:
        threading.Thread(target=control.serve_forever, kwargs={"poll_interval": 3600}, daemon=True).start()
        write_log(
            f"serving {options.root} on {', '.join(f'{each.server_name}:{each.server_port}' for each in servers)}"
        )
        ending = signal.sigwait(STOP_SIGNALS)
    write_log(f"ended by {signal.Signals(ending).name}")


def main() -> int:
    try:
        serve(arguments(sys.argv[1:]))
    except LabError as error:
        print(f"mirror: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
