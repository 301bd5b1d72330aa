"""The error catalogue: what each error name means, what to check and what to do, as data beside the code.

`errors.yaml` of each distribution is the source of `docs/reference/errors.md` and of the command `explain`. The fields
`exit`, `retry` and `messages` are written by `scripts/docs references` from the code; the rest is written by hand.
"""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import CommandUsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE_NAME = "errors.yaml"
WIDTH = 100


@dataclass(frozen=True)
class ErrorEntry:
    """One error of the catalogue. `retry` says whether the same command may succeed later without any change."""

    name: str
    group: str
    cause: str
    check: str = ""
    remedy: str = ""
    exit: tuple[int, ...] = ()
    retry: bool = False
    messages: tuple[str, ...] = ()

    @classmethod
    def from_document(cls, name: str, document: Mapping[str, Any]) -> ErrorEntry:
        lists = {key: tuple(document.get(key, ())) for key in ("exit", "messages")}
        return cls(name, **{**document, **lists})

    def to_document(self) -> dict[str, Any]:
        """Returns the entry as JSON-compatible data."""
        return {
            "name": self.name,
            "group": self.group,
            "messages": list(self.messages),
            "cause": self.cause,
            "check": self.check,
            "remedy": self.remedy,
            "exitCodes": list(self.exit),
            "retry": self.retry,
        }


def load_catalog(*packages: str) -> dict[str, ErrorEntry]:
    """Reads the catalogues of these packages. The first package that has a name wins."""
    import yaml

    found: dict[str, ErrorEntry] = {}
    for package in packages:
        text = resources.files(package).joinpath(FILE_NAME).read_text()
        for name, document in yaml.safe_load(text).items():
            found.setdefault(name, ErrorEntry.from_document(name, document))
    return found


def find_entry(name: str, catalog: Mapping[str, ErrorEntry]) -> ErrorEntry:
    """Looks a name up. Case and separators do not matter: the condition reason `DiskFull` is the error `disk-full`."""
    known = {_letters(each): entry for each, entry in catalog.items()}
    entry = known.get(_letters(name))
    if entry:
        return entry
    near = difflib.get_close_matches(name.lower(), catalog, 3, 0.5)
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise CommandUsageError(
        "error-name-unknown",
        f"The catalogue has no error named {name!r}.",
        f"{hint}Run `explain` without a name to list all names.",
    )


def render_entry(entry: ErrorEntry) -> str:
    """Formats an entry for a terminal."""
    codes = " or ".join(str(code) for code in entry.exit)
    head = f"{entry.name} ({entry.group.lower()}, exit code {codes})" if codes else f"{entry.name} ({entry.group})"
    retry = "Running the same command again later can help." if entry.retry else ""
    parts = [("Cause", entry.cause), ("Check", entry.check), ("Remedy", entry.remedy), ("Retry", retry)]
    return "\n\n".join([head, *(_paragraph(title, text) for title, text in parts if text)])


def render_list(entries: Iterable[ErrorEntry]) -> str:
    """Formats the names by group."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        groups.setdefault(entry.group, []).append(entry.name)
    return "\n\n".join(
        "\n".join([group, *(f"  {name}" for name in sorted(names))]) for group, names in groups.items()
    )


def _paragraph(title: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{title + ':':<8}",
        subsequent_indent=" " * 8,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())
