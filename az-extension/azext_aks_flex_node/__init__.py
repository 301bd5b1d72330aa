"""Azure CLI extension `az aks flex-node`: the command loader."""

from __future__ import annotations

from typing import Any

from azure.cli.core import AzCommandsLoader


class FlexNodeCommandsLoader(AzCommandsLoader):
    """Loads the commands of the extension."""

    def load_command_table(self, args: list[str] | None) -> dict[str, Any]:
        from azure.cli.core.aaz import load_aaz_command_table  # noqa: PLC0415 - slow, load only when needed

        from azext_aks_flex_node import aaz  # noqa: PLC0415

        load_aaz_command_table(loader=self, aaz_pkg_name=aaz.__name__, args=args)
        return dict(self.command_table)

    def load_arguments(self, command: str) -> None:
        """Does nothing: AAZ commands define their arguments themselves."""


COMMAND_LOADER_CLS = FlexNodeCommandsLoader
