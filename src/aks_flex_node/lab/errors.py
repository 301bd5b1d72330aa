"""What can go wrong in the lab, told to a person.

    LabError                the lab cannot do what was asked
    ├── UsageError          the words of the command were wrong: nothing was tried          exit 2
    ├── HostError           this machine lacks something: a right, a program, a feature     exit 3
    ├── ToolError           a tool could not be fetched, built or checked                   exit 4
    └── PartError           a part of the lab did not start, or ended                       exit 5

Every error has a kebab-case name, one sentence that says what happened, and a hint that says what to do next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self


class LabError(FlexError):
    @classmethod
    def told(cls, document: Mapping[str, str]) -> Self:
        """An error that another part of the lab raised, and passed on as data."""
        return cls(document["name"], document["message"], document["hint"])


class UsageError(LabError):
    exit_code = 2


class HostError(LabError):
    exit_code = 3


class ToolError(LabError):
    exit_code = 4


class PartError(LabError):
    exit_code = 5
