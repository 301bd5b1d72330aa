from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from azure.cli.core.aaz import AAZFloatArg, AAZIntArg, register_command
from azure.cli.core.azclierror import InvalidArgumentValueError
from knack.log import get_logger

from azext_aks_flex_node import arguments
from azext_aks_flex_node.arguments import PlainArg
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.secret_input import UNREADABLE, file_error
from azext_aks_flex_node.tables import enrolment_rows, machine_rows
from azext_aks_flex_node.vendored.allow_lists import AllowListError, parse_allow_list
from azext_aks_flex_node.vendored.node_summary import join_command

logger = get_logger(__name__)
DEFAULT_HOURS = 72.0


@register_command("aks flex-node pool enrolment create")
class CreateEnrolment(FlexNodeCommand):
    """Create an enrolment. The output has the line that enrols a machine, which is a secret and is shown once.

    :example: Enrol up to 40 machines
        az aks flex-node pool enrolment create -g my-rg --cluster my-cluster --name edge --max-uses 40
    """

    OPTIONS = (
        *arguments.pool(ids=False),
        arguments.option(AAZIntArg, "max_uses", "How many machines may enrol.", required=True),
        arguments.option(AAZFloatArg, "hours", "How many hours the URL is valid. Default: 72."),
        arguments.choice(
            "approval",
            "Which machines may enrol: all, those that a person approves, or those on a list.",
            ("automatic", "manual", "allowList"),
        ),
        arguments.option(
            PlainArg, "allow_file", "CSV file of machines, with a header row: serialNumber, systemUuid, macAddress."
        ),
        arguments.option(PlainArg, "node_name", "Names of the nodes: {hostname}, edge-{serial} or edge-{number:04}."),
    )

    def execute(self) -> Any:
        options = self.ctx.options
        file, until = options.get("allow_file"), time.time() + float(options.get("hours") or DEFAULT_HOURS) * 3600
        body: dict[str, Any] = {"maxUses": options["max_uses"]}
        body["expires"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(until))
        body["approval"] = options.get("approval") or ("allowList" if file else "automatic")
        if name := options.get("node_name"):
            body["nodeName"] = str(name)
        if file:
            body["allow"] = _allow_list(str(file))
        made = self.pool("enrolments", body=body)
        logger.warning("Run the command in the output as root on each machine. It is a secret and is shown once.")
        return {"command": join_command(made["properties"]["enrolmentUrl"]), **made}


def _allow_list(file: str) -> list[dict[str, str]]:
    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
    except UNREADABLE as error:
        raise file_error(file, "--allow-file", error) from None
    try:
        return parse_allow_list(text, file)
    except AllowListError as error:
        raise InvalidArgumentValueError(str(error), error.hint) from None


@register_command("aks flex-node pool enrolment list")
class ListEnrolmentsCommand(FlexNodeCommand):
    """List the enrolments of a pool.

    :example: List enrolments as a table
        az aks flex-node pool enrolment list -g my-rg --cluster my-cluster --name edge -o table
    """

    ROWS = enrolment_rows

    OPTIONS = arguments.pool(ids=False)

    def execute(self) -> Any:
        return self.pages("flexNodePools", self.ctx.options["name"], "enrolments")


class _OfEnrolment(FlexNodeCommand):
    """A command about one enrolment."""

    OPTIONS = (
        *arguments.pool(ids=False),
        arguments.option(PlainArg, "enrolment", "ID of the enrolment.", "--id", required=True),
    )

    def send(self, *below: str, **request: Any) -> Any:
        return self.pool("enrolments", str(self.ctx.options["enrolment"]), *below, **request)


@register_command("aks flex-node pool enrolment show")
class ShowEnrolment(_OfEnrolment):
    """Show an enrolment: its state, uses and rules.

    :example: Show an enrolment
        az aks flex-node pool enrolment show -g my-rg --cluster my-cluster --name edge --id k7m2p9xq
    """

    ROWS = enrolment_rows

    def execute(self) -> Any:
        return self.send()


@register_command("aks flex-node pool enrolment revoke")
class Revoke(_OfEnrolment):
    """Revoke an enrolment. Nodes that joined with it stay as they are.

    :example: Revoke an enrolment
        az aks flex-node pool enrolment revoke -g my-rg --cluster my-cluster --name edge --id k7m2p9xq
    """

    def execute(self) -> Any:
        return self.send("revoke", body={})


@register_command("aks flex-node pool enrolment machines")
class Machines(_OfEnrolment):
    """List the machines that have used an enrolment, those that wait for approval first.

    :example: List machines as a table
        az aks flex-node pool enrolment machines -g my-rg --cluster my-cluster --name edge --id k7m2p9xq -o table
    """

    ROWS = machine_rows

    def execute(self) -> Any:
        found: list[Any] = []
        token = ""
        while True:
            page = self.send("listMachines", body={"after": token} if token else {})
            found += page["value"]
            token = page.get("after", "")
            if not token:
                return found


class _Decision(_OfEnrolment):
    """A decision about a machine, by the fingerprint of its key."""

    OPTIONS = (
        *_OfEnrolment.OPTIONS,
        arguments.option(PlainArg, "fingerprint", "Fingerprint that the machine prints.", required=True),
    )

    def decide(self, action: str) -> Any:
        return self.send(action, body={"fingerprint": str(self.ctx.options["fingerprint"])})


@register_command("aks flex-node pool enrolment approve")
class Approve(_Decision):
    r"""Approve a machine whose fingerprint you have compared.

    :example: Approve a machine
        az aks flex-node pool enrolment approve -g my-rg --cluster my-cluster --name edge --id k7m2p9xq \
            --fingerprint 1a2b-3c4d-5e6f-7a8b
    """

    def execute(self) -> Any:
        first = self.send("listMachines", body={})["value"]  # this page has all machines without a node
        done = self.decide("approve")
        if any(each["fingerprint"] == done["fingerprint"] and each["state"] == "Rejected" for each in first):
            logger.warning(
                "The machine was rejected before, so its agent has ended. Run the enrolment's line on it again."
            )
        return done


@register_command("aks flex-node pool enrolment reject")
class Reject(_Decision):
    r"""Reject a machine. It may be approved later.

    :example: Reject a machine
        az aks flex-node pool enrolment reject -g my-rg --cluster my-cluster --name edge --id k7m2p9xq \
            --fingerprint 1a2b-3c4d-5e6f-7a8b
    """

    def execute(self) -> Any:
        return self.decide("reject")
