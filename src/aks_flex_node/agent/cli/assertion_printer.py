"""`node-assertions`: the child process that signs with the node key for the daemon.
Reads what to assert on standard input and prints the assertions of the next hour as JSON.
"""

from __future__ import annotations

import json
import sys

from aks_flex_node.agent.provider.node_assertions import sign_assertions
from aks_flex_node.host.real import RealHost


def print_assertions() -> None:
    """Implements `aks-flex-node node-assertions`. Prints to a pipe and refuses to print to a terminal."""
    if sys.stdout.isatty():
        print("This command is internal. It prints credentials and does not run on a terminal.", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(sign_assertions(RealHost(), json.loads(sys.stdin.read()))))
