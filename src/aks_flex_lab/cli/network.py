"""`aks-flex-lab network …`: the cluster network, an optional part of the lab."""

from __future__ import annotations

import time

import typer

from aks_flex_lab.cli import console
from aks_flex_lab.cli.console import TerminalProgress, selected_layout
from aks_flex_lab.cluster_network import install_network
from aks_flex_lab.host_requirements import require_root
from aks_flex_lab.lab import Lab

app = typer.Typer(no_args_is_help=True, help="Manage the cluster network of pods and Services.")


@app.callback()
def network() -> None:
    """Keeps `install` a subcommand while it is the only one."""


@app.command()
def install(ctx: typer.Context) -> None:
    """Install a network plugin, kube-proxy and CoreDNS.

    They run on every node, also on those that join later. Pods, Services and DNS names then work across nodes and
    sites, and the API server reaches pods. The first run builds the programs, which takes minutes.
    """
    require_root()
    lab = Lab(selected_layout(ctx))
    start = time.monotonic()
    with lab.exclusive():
        install_network(lab, TerminalProgress())
    console.message(f"The cluster network is installed ({time.monotonic() - start:.1f} s).")
