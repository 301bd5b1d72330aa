"""`az aks flex-node`: what az loads."""

from __future__ import annotations

from typing import Any

from azure.cli.core import AzCommandsLoader


class FlexNodeCommandsLoader(AzCommandsLoader):
    def load_command_table(self, args: list[str] | None) -> dict[str, Any]:
        from azure.cli.core.aaz import load_aaz_command_table  # noqa: PLC0415 - slow, and not for all of az

        from azext_aks_flex_node import aaz  # noqa: PLC0415

        load_aaz_command_table(loader=self, aaz_pkg_name=aaz.__name__, args=args)
        return dict(self.command_table)

    def load_arguments(self, command: str) -> None:
        """Commands of this kind bring their own."""


COMMAND_LOADER_CLS = FlexNodeCommandsLoader
