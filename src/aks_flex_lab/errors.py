"""The lab's errors, with exit codes, and hints for misspelled names.

    LabError                the lab cannot complete the command                         exit 1
    ├── UsageError          the command line is wrong; nothing was tried                exit 2
    ├── HostError           the host lacks a permission, a program or a kernel feature  exit 3
    ├── ToolError           a tool could not be downloaded, built or verified           exit 4
    └── ComponentError      a component of the lab did not start, or exited             exit 5

Every error has a kebab-case name, one sentence that says what happened, and a hint that says what to do next.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from aks_flex_node.errors import FlexError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self


class LabError(FlexError):
    @classmethod
    def from_document(cls, document: Mapping[str, str]) -> Self:
        """Returns the error that another program of the lab reported as a document."""
        return cls(document["name"], document["message"], document["hint"])


class UsageError(LabError):
    exit_code = 2


class HostError(LabError):
    exit_code = 3


class ToolError(LabError):
    exit_code = 4


class ComponentError(LabError):
    exit_code = 5


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Returns a hint with the most similar known name, or with all known names."""
    names = list(known)
    if near := difflib.get_close_matches(word, names, 1):
        return f"Did you mean {near[0]}?"
    return f"The known names are: {', '.join(names)}." if names else "None exists yet."
