"""The catalogue of names that the programs print: errors, conditions, condition reasons and provider states.

`errors.yaml` of each distribution and `conditions.yaml` are the source of the reference pages of errors and names,
of the command `explain` and of the dashboard's texts. The catalogue has the errors that an operator meets in practice
and about which there is more to say than message and hint. All other errors are described where they are raised.
"""

from __future__ import annotations

import difflib
import textwrap
from importlib import resources
from typing import TYPE_CHECKING, Any

from aks_flex_node.errors import CommandUsageError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

FILE_NAME = "errors.yaml"
CONDITIONS_FILE = "conditions.yaml"
WIDTH = 100


@frozen
class ErrorEntry:
    """One error of the catalogue. `retry` is true if the same command can succeed later without any change."""

    name: str
    group: str
    cause: str
    check: str = ""
    remedy: str = ""
    exit: tuple[int, ...] = ()
    retry: bool = False

    @classmethod
    def from_document(cls, name: str, document: Mapping[str, Any]) -> ErrorEntry:
        return cls(name, **{**document, "exit": tuple(document["exit"])})

    def to_document(self) -> dict[str, Any]:
        """Returns the entry as JSON-compatible data."""
        return {
            "name": self.name,
            "group": self.group,
            "cause": self.cause,
            "check": self.check,
            "remedy": self.remedy,
            "exitCodes": list(self.exit),
            "retry": self.retry,
        }


@frozen
class StatusName:
    """A condition type, a condition reason or a provider state."""

    name: str
    kind: str  # condition, reason, state or job result
    meaning: str
    remedy: str = ""
    condition: str = ""  # for a reason: the condition types that use it
    healthy: str = ""  # for a condition: the status that needs no attention
    see: str = ""  # a related error or name

    def to_document(self) -> dict[str, Any]:
        """Returns the entry as JSON-compatible data."""
        return {"name": self.name, "kind": self.kind, "meaning": self.meaning, "remedy": self.remedy}


def load_status_names() -> dict[str, StatusName]:
    """Reads the conditions, reasons, provider states and job results."""
    groups = (("conditions", "condition"), ("reasons", "reason"), ("states", "state"), ("results", "job result"))
    return {name: entry for group, kind in groups for name, entry in _status_names(group, kind).items()}


def load_conditions() -> dict[str, StatusName]:
    """Reads the condition types."""
    return _status_names("conditions", "condition")


def _status_names(group: str, kind: str) -> dict[str, StatusName]:
    import yaml  # noqa: PLC0415 - slow to import, and only `explain` needs it

    document = yaml.safe_load(resources.files("aks_flex_node").joinpath(CONDITIONS_FILE).read_text())
    return {
        name: StatusName(name, kind, **{key: text.strip() for key, text in fields.items()})
        for name, fields in document[group].items()
    }


def load_catalog(*packages: str) -> dict[str, ErrorEntry]:
    """Reads the catalogues of these packages. The first package that has a name wins."""
    import yaml  # noqa: PLC0415 - slow to import, and only `explain` needs it

    found: dict[str, ErrorEntry] = {}
    for package in packages:
        text = resources.files(package).joinpath(FILE_NAME).read_text()
        for name, document in yaml.safe_load(text).items():
            found.setdefault(name, ErrorEntry.from_document(name, document))
    return found


def has_entry(name: str, *packages: str) -> bool:
    """Tells whether the catalogues have an error, without parsing them: a failed command ends without delay."""
    return any(f"\n{name}:\n" in f"\n{resources.files(each).joinpath(FILE_NAME).read_text()}" for each in packages)


def find_entry(name: str, catalog: Mapping[str, ErrorEntry | StatusName]) -> ErrorEntry | StatusName:
    """Finds a name. Case and separators are ignored: the reason `DiskFull` matches the error `disk-full`."""
    if name in catalog:
        return catalog[name]
    known = {_letters(each): entry for each, entry in reversed(list(catalog.items()))}
    entry = known.get(_letters(name))
    if entry:
        return entry
    near = difflib.get_close_matches(name.lower(), catalog, 3, 0.5)
    hint = f"Did you mean {', '.join(near)}? " if near else ""
    raise CommandUsageError(
        "error-name-unknown",
        f"The catalogue has no entry named {name!r}.",
        f"{hint}If it is an error, see its message; it has no further explanation. "
        "Run the same command without a name to list all names.",
    )


def render_entry(entry: ErrorEntry | StatusName) -> str:
    """Formats an entry for a terminal."""
    if isinstance(entry, StatusName):
        kind = f"reason of {entry.condition}" if entry.condition else entry.kind.replace("state", "provider state")
        texts = [("Meaning", entry.meaning), ("Remedy", entry.remedy), ("See", entry.see)]
        return "\n\n".join([f"{entry.name} ({kind})", *(_paragraph(title, text) for title, text in texts if text)])
    codes = " or ".join(str(code) for code in entry.exit)
    head = f"{entry.name} ({entry.group.lower()}, exit code {codes})" if codes else f"{entry.name} ({entry.group})"
    retry = "Running the same command again later can help." if entry.retry else ""
    parts = [("Cause", entry.cause), ("Check", entry.check), ("Remedy", entry.remedy), ("Retry", retry)]
    return "\n\n".join([head, *(_paragraph(title, text) for title, text in parts if text)])


def render_list(entries: Iterable[ErrorEntry | StatusName]) -> str:
    """Formats the names by group."""
    groups: dict[str, list[str]] = {}
    for entry in entries:
        group = entry.group if isinstance(entry, ErrorEntry) else f"Status: {entry.kind}s"
        groups.setdefault(group, []).append(entry.name)
    return "\n\n".join(
        "\n".join([group, *(f"  {name}" for name in sorted(names))]) for group, names in groups.items()
    )


def _paragraph(title: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{title + ':':<9}",
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def explain(name: str | None, *packages: str) -> tuple[str, Any]:
    """Returns the entry of a name, or the list of all names, as text and as JSON-compatible data."""
    catalog: dict[str, ErrorEntry | StatusName] = {**load_catalog(*packages), **load_status_names()}
    if name is None:
        return render_list(catalog.values()), [entry.to_document() for entry in catalog.values()]
    entry = find_entry(name, catalog)
    return render_entry(entry), entry.to_document()
