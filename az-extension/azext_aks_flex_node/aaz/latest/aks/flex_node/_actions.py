from __future__ import annotations

from typing import Any

from azure.cli.core.aaz import register_command
from azure.core.exceptions import HttpResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.vendored.node_summary import deletion_text, enrolment_note, join_command, machine_note

FORMATTED = {"-o", "--output", "--query"}
CONFIRMATION = (
    "The configuration URL and token are revoked immediately. The daemon of a managed node drains the node, removes "
    "it from the cluster and removes the installed components from the machine, unless the machine's policy forbids "
    "it. Delete this flex node?"
)
logger = get_logger(__name__)


class _NewUrl(FlexNodeCommand):
    """A command that creates a configuration URL, which ends the previous one."""

    def create_url(self) -> dict[str, Any]:
        """Creates a new token and configuration URL. With --replace, another machine may use it."""
        name, replace = str(self.ctx.options["name"]), bool(self.ctx.options.get("replace"))
        created = self.node("regenerateToken", body={"replaceMachine": True} if replace else {})
        if note := machine_note(name, created, replace=replace):
            logger.warning("%s", note)
        return dict(created)


@register_command("aks flex-node regenerate-token")
class RegenerateTokenOfNode(_NewUrl):
    r"""Create a new token and configuration URL for a flex node.

    The previous token and URL are revoked.

    :example: Print a new configuration URL after a failed join
        az aks flex-node regenerate-token -g my-rg --cluster my-cluster --name edge-1 \
        --query configUrl -o tsv
    """

    OPTIONS = (*arguments.node(), arguments.REPLACE)

    def execute(self) -> Any:
        """Includes the name, because the results of several --ids are unordered."""
        return {"name": str(self.ctx.options["name"]), **self.create_url()}


@register_command("aks flex-node join-command")
class JoinCommand(_NewUrl):
    r"""Print the join command of a flex node.

    Run it as root on the machine. The command is a secret until it is used: any machine that
    runs it joins as this node. A previous configuration URL is revoked. The command of a node
    that lives on a machine works only there, unless --replace moves the node.

    :example: Print the join command
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1
    :example: Run the join command on the machine
        az aks flex-node join-command -g my-rg --cluster my-cluster --name edge-1 -o tsv \
        | ssh root@edge-1 sh
    """

    # One command per machine: with several, the output would be ambiguous.
    OPTIONS = (*arguments.node(ids=False), arguments.REPLACE)

    def execute(self) -> Any:
        """Prints plain text that can be pasted, unless an output format is set."""
        created = self.create_url()
        logger.warning(
            "Run the command as root on the machine. It is valid until %s, for one use. A previous configuration URL "
            "is revoked.",
            created["configUrlExpires"],
        )
        line = join_command(str(created["configUrl"]))
        if FORMATTED & set(self.cli_ctx.data.get("safe_params") or ()):
            return line
        print(line)
        return None


@register_command("aks flex-node revoke-key")
class RevokeKeyOfNode(FlexNodeCommand):
    r"""Revoke the key of a flex node, with its configuration URL.

    The node stays in the cluster. Its machine reports again after it has joined with a new join command.

    :example: Revoke the key of a machine that was stolen
        az aks flex-node revoke-key -g my-rg --cluster my-cluster --name edge-1
    """

    OPTIONS = arguments.node()

    def execute(self) -> Any:
        """Includes the name, because the results of several --ids are unordered."""
        revoked = self.node("revokeKey", method="POST")
        if note := enrolment_note(revoked):
            logger.warning("%s", note)
        return {"name": str(self.ctx.options["name"]), **revoked}


@register_command("aks flex-node release")
class Release(FlexNodeCommand):
    """Release an enrolled node for re-imaging.

    The same machine may enrol again as this node with a new disk, and takes no use.

    :example: Release a node before its machine is re-imaged
        az aks flex-node release -g my-rg --cluster my-cluster --name edge-1
    """

    OPTIONS = arguments.node()

    def execute(self) -> Any:
        return {"name": str(self.ctx.options["name"]), **self.node("release", method="POST")}


@register_command("aks flex-node delete", confirmation=CONFIRMATION)
class Delete(FlexNodeCommand):
    """Delete a flex node.

    Revokes the configuration URL and the token immediately. The daemon of a managed node drains
    the node, removes it from the cluster and removes the installed components, unless the
    policy of the machine forbids it. For such a node, and one that is not managed, run
    `aks-flex-node unbootstrap` on the machine.

    :example: Delete a node without confirmation
        az aks flex-node delete -g my-rg --cluster my-cluster --name edge-1 --yes
    """

    AZ_SUPPORT_NO_WAIT = True

    OPTIONS = arguments.node()

    def execute(self) -> None:
        """Prints nothing on success, as other delete commands of az do."""
        name, found = self.ctx.options["name"], self._found()
        done = self.node(method="DELETE")
        if done is None:
            logger.warning("The flex node %s was not found.", name)
            return
        if found and (text := deletion_text(name, found)):
            logger.warning(text)
        for each in done.get("azureResources", ()):
            logger.warning("Removed by the agent. If it remains, run: %s", each["command"])

    def _found(self) -> dict[str, Any] | None:
        """Reads the node, to tell what happens to its machine. Not every caller may read it."""
        try:
            return dict(self.node())
        except HttpResponseError as error:
            if error.status_code not in {403, 404}:
                raise
            return None
