"""`node-key show`, `node-key rotate`: the key with which this node authenticates to its provider."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from aks_flex_node.agent.cli import terminal
from aks_flex_node.agent.cli.options import Json

if TYPE_CHECKING:
    from aks_flex_node.agent.identity.node_key import StoredKey

app = typer.Typer(no_args_is_help=True, help="Show or replace the key of this node.")


@app.command()
def show(json: Json = False) -> None:
    """Show the key of this node: its thumbprint, its fingerprint and its age."""
    from aks_flex_node.agent import context
    from aks_flex_node.agent.identity.node_key import NodeKeyStore
    from aks_flex_node.host.real import RealHost

    context.require_root()
    key = NodeKeyStore(RealHost()).read()
    if key:
        _print(key, json=json)
    elif json:
        terminal.print_json({})
    else:
        terminal.print_line("This machine has no node key. It gets one when it joins by a configuration URL.")


@app.command()
def rotate(json: Json = False) -> None:
    """Replace the key of this node by a new one.

    The agent does so once a year. The earlier key is valid until the new one is used.
    """
    from aks_flex_node.agent import context
    from aks_flex_node.agent.config_sources.selection import rotate_node_key
    from aks_flex_node.agent.provider.provider_client import ProviderRequestError
    from aks_flex_node.errors import FlexError

    context.require_root()
    context.require_node()
    try:
        with context.current_engine() as engine:
            key = rotate_node_key(engine, context.node_name(engine))
    except ProviderRequestError as error:
        raise FlexError(
            "node-key-not-rotated",
            f"The provider did not accept a new key: {error.result.message}",
            "The node keeps its key. Run `aks-flex-node status`, remove the cause, and run the same command again.",
            retryable=True,
        ) from None
    _print(key, json=json)


def _print(key: StoredKey, *, json: bool) -> None:
    from aks_flex_node.api.node_keys import fingerprint

    shown = {
        "thumbprint": key.thumbprint,
        "fingerprint": fingerprint(key.thumbprint),
        "created": key.created,
        "bound": key.is_bound,
    }
    if json:
        terminal.print_json(shown)
        return
    terminal.print_line(f"thumbprint   {key.thumbprint}")
    terminal.print_line(f"fingerprint  {fingerprint(key.thumbprint)}")
    terminal.print_line(f"created      {key.created}")
    terminal.print_line(f"provider     {key.audience if key.is_bound else 'none has bound it'}")
