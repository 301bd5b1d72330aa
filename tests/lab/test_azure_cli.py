"""`aks-flex-lab az` and `rp`: signed in, and with next commands that work in the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness import LAB, command

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab

NODES = ("az", "aks", "flex-node")
ON = ("-g", "lab", "--cluster", "lab")


def test_az_in_lab_is_signed_in_and_manages_nodes(lab: Lab) -> None:
    created = command(LAB, *NODES, "create", *ON, "--name", "by-az", "--query", "name", "-o", "tsv")
    (lab.layout.home / "az" / "signed-in").unlink()  # as after a sign-in that failed: the next command repeats it
    try:
        shown = command(LAB, "rp", "node", "update", "--name", "by-az", "--max-pods", "50")
    finally:
        command(LAB, *NODES, "delete", *ON, "--name", "by-az", "--yes")

    assert created.out == "by-az\n"
    assert f"`{lab.command} rp node join-command --name by-az`" in shown.err
    secret = (lab.layout.home / "az" / "secret").stat()
    assert secret.st_mode & 0o077 == 0
