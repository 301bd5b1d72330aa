from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

from azure.cli.core.aaz import AAZBoolArg, AAZIntArg, AAZStrArg, register_command
from azure.cli.core.azclierror import AzureResponseError, InvalidArgumentValueError
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from knack.log import get_logger

from azext_aks_flex_node import arguments, option_values
from azext_aks_flex_node.commands import FlexNodeCommand
from azext_aks_flex_node.tables import rollout_rows
from azext_aks_flex_node.vendored import rollout_options, rollout_summary
from azext_aks_flex_node.vendored.node_summary import printable
from azext_aks_flex_node.wait_command import is_temporary

logger = get_logger(__name__)
OPTIONS = {each.name for each in fields(rollout_options.RolloutOptions)} - {"gates"}


@register_command("aks flex-node rollout create")
class CreateRollout(FlexNodeCommand):
    r"""Create a roll-out, and wait until it has ended.

    Each change is printed on standard error. The command fails if the roll-out does not succeed.
    The same command again follows the same roll-out. With --no-wait, it ends at once.

    :example: Roll out the newest revision of a pool
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may --no-wait
    :example: Roll out in three waves, with one node of a site at a time, and watch each wave for 30 minutes
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may \
        --waves 1 25% 100% --canary canary=true --failure-domain site --soak 30m --no-wait
    :example: Check each wave with the gates of a file, and keep what nodes have after a failure
        az aks flex-node rollout create -g my-rg --cluster my-cluster --pool edge --name may \
        --gates-file gates.yaml --on-failure halt --no-wait
    """

    AZ_SUPPORT_NO_WAIT = True
    ROWS = rollout_rows

    @classmethod
    def add_arguments(cls, schema: Any) -> None:
        arguments.rollout(schema, new=True)
        _nodes(schema)
        _safety(schema)

    def execute(self) -> Any:
        args = self.ctx.options
        made = self.rollout(method="PUT", body={"properties": _properties(args)})
        if args.get("no_wait"):
            return made
        made = rollout_summary.follow(made, self._read, _print_line, time.sleep)
        if made["properties"]["state"] != rollout_summary.SUCCEEDED:
            raise AzureResponseError(
                f"{rollout_summary.end_text(made)}.",
                "See the gates with `az aks flex-node rollout show`, and the failed nodes with "
                "`az aks flex-node rollout list-nodes --state Failed`.",
            )
        return made

    def _read(self, is_patient: bool) -> dict[str, Any] | None:
        try:
            return dict(self.rollout())
        except (ServiceRequestError, ServiceResponseError, HttpResponseError) as error:
            if is_patient and is_temporary(error):
                return None
            raise


def _print_line(text: str) -> None:
    logger.warning("%s %s", time.strftime("%H:%M:%S"), printable(text))


def _properties(args: dict[str, Any]) -> dict[str, Any]:
    try:
        gates = option_values.read_gates(args["gates_file"]) if "gates_file" in args else []
        given = {name: args[name] for name in OPTIONS if name in args}
        return rollout_options.rollout_properties(rollout_options.RolloutOptions(gates=gates, **given))
    except rollout_options.RolloutOptionError as error:
        option = {"wave": "waves"}.get(error.option, error.option)
        text = f"--{option}: {error.value!r} {error.reason}."
        raise InvalidArgumentValueError(text, error.hint) from None


def _nodes(schema: Any) -> None:
    schema.revision = AAZIntArg(options=["--revision"], help="Number of the revision. Default: the newest.")
    lists = {
        "waves": "Space-separated waves: how many nodes after each one, as numbers or percentages, the last 100%. "
        "Default: 1 10% 50% 100%.",
        "selector": "Space-separated labels, KEY=VALUE, of the nodes that take part. Default: all nodes of the pool.",
        "canary": "Space-separated labels, KEY=VALUE, of the nodes of the first wave.",
    }
    texts = {
        "max_unavailable": "How many nodes may be unavailable at once, a number or a percentage. Default: 10%.",
        "failure_domain": "LABEL or LABEL=N: how many nodes with the same value of a label may be unavailable at "
        "once. Default of N: 1.",
        "stage_timeout": "How long a wave waits for the downloads of its nodes. Default: 10m. 0: no downloads ahead.",
    }
    arguments.add_options(schema, "Waves", arguments.WordsArg, lists)
    arguments.add_options(schema, "Waves", AAZStrArg, texts)


def _safety(schema: Any) -> None:
    group = "Safety"
    texts = {
        "soak": "How long the nodes of a wave must stay healthy: seconds, or for example 10m or 1h. Default: 10m.",
        "gates_file": "File (JSON or YAML) with a list of gates: checks after the soak time of each wave.",
        "node_timeout": "Time limit of the update of a node. Default: 1h.",
    }
    arguments.add_options(schema, group, AAZStrArg, texts)
    schema.on_failure = AAZStrArg(
        options=["--on-failure"],
        arg_group=group,
        enum={each: each for each in rollout_options.ON_FAILURE},
        help="After a failure: keep what nodes have (halt), or bring them back (reverse, default).",
    )
    schema.max_failures = AAZIntArg(
        options=["--max-failures"], arg_group=group, help="How many nodes may fail. Default: 0."
    )
    flags = {
        "allow_downgrade": "Allow older versions than the nodes have.",
        "replace_active": "Abort the active roll-out of the pool.",
    }
    arguments.add_options(schema, group, AAZBoolArg, flags)
