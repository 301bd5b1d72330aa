"""The options of the benchmarks: each benchmark lists its own, with their defaults and help."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aks_flex_lab.machines.base_system import DebianRelease

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Option:
    """An option whose value has the type of its default; a tuple takes several values, and False makes a switch."""

    name: str
    default: Any
    help: str = ""
    choices: tuple[str, ...] = ()
    kind: Callable[[str], Any] | None = None  # of a value without a default

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        if self.default is False:
            parser.add_argument(self.name, action="store_true", help=self.help)
            return
        several = isinstance(self.default, tuple)
        parser.add_argument(
            self.name,
            type=self.kind or type(self.default[0] if several else self.default),
            nargs="+" if several else None,
            default=self.default,
            choices=self.choices or None,
            help=self.help,
        )


LAB = Option("--lab", "bench", "name of the lab; started, and removed at the end, unless it is running")
SYSTEM = Option("--os", DebianRelease.BOOKWORM.value, choices=tuple(system.value for system in DebianRelease))


def parse(name: str, description: str | None, *options: Option) -> argparse.Namespace:
    """Parses the command line of `python -m bench.NAME`."""
    parser = argparse.ArgumentParser(
        prog=f"bench.{name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for option in options:
        option.add_to(parser)
    return parser.parse_args()
