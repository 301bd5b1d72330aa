"""Offers the operator at the terminal to sign in to Azure with a device code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

from aks_flex_node.agent.cli import terminal

if TYPE_CHECKING:
    from datetime import datetime


class TerminalDevicePrompt:
    def offer(self, reason: str) -> bool:
        terminal.print_message(reason)
        return typer.confirm("Sign in with a device code in a browser?", default=True, err=True)

    def show(self, url: str, code: str, expires: datetime) -> None:
        terminal.print_message(
            f"Open {url} in a browser on any device, and enter the code {code} before {expires:%H:%M} UTC."
        )


def offer_device_sign_in(*, no_input: bool) -> None:
    """Enables the offer for this process, unless the operator cannot be asked."""
    if no_input or not (sys.stdin.isatty() and sys.stderr.isatty()):
        return
    from aks_flex_node.agent.identity import azure_sign_in

    azure_sign_in.enable_device_sign_in(TerminalDevicePrompt())
