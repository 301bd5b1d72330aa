"""The command `aks-flex-node`. Version, help, token and daemon entry points are handled before typer is imported."""

from __future__ import annotations

import os
import sys


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["version"], ["--version"]):
        from aks_flex_node import __version__

        print(__version__)
        return
    if arguments[:1] == ["token"]:
        from aks_flex_node.agent.cli.exec_credential import main as token_main

        if token_main(arguments):
            return
    if "_AKS_FLEX_NODE_COMPLETE" not in os.environ:
        from aks_flex_node.agent.cli.help_pages import find_page

        text = find_page(arguments)
        if text is not None:
            try:
                print(text, flush=True)
            except BrokenPipeError:
                _discard_output()
            return
    from aks_flex_node.agent.cli.internal_commands import main as internal_main

    if internal_main(arguments):
        return
    from aks_flex_node.agent.cli.app import run

    try:
        run()
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_output()


def _discard_output() -> None:
    """Handles a reader that has ended, for example `| head`: the flush at exit must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
