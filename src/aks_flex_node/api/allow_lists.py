"""Allow lists of enrolments as CSV: a header row, and one machine in each row.

`aks-flex-rp` imports this module, and the wheel of `az aks flex-node` contains a copy of it and of `enrolments`. It
imports only that one, by its place, and the standard library.
"""

from __future__ import annotations

import csv
import io

from .enrolments import normalized_mac, normalized_serial, normalized_uuid

FACTS = {"serialNumber": normalized_serial, "systemUuid": normalized_uuid, "macAddress": normalized_mac}
_COLUMNS = {name.lower(): name for name in FACTS}
MAX_CELL = 128


class AllowListError(ValueError):
    """A list is not valid. The message names the line, and the hint says what to do."""

    hint = (
        f"Use a CSV file whose first row is the header, with one or more of {', '.join(FACTS)}. Correct the line, "
        "and run the command again. Nothing was changed."
    )

    def __init__(self, file: str, line: int, why: str) -> None:
        super().__init__(f"{file}, line {line}: {why}.")
        self.line, self.why = line, why


def parse_allow_list(text: str, file: str) -> list[dict[str, str]]:
    """Returns the entries of a CSV file. Raises AllowListError that names the line of the first invalid value.

    A row may have several facts: each of them admits the machine. Other columns are ignored.
    """
    reader = csv.reader(io.StringIO(text.lstrip("\ufeff")), strict=True)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise AllowListError(file, reader.line_num, f"it is not CSV ({error})") from None
    if not rows:
        raise AllowListError(file, 1, "the header row is missing")
    (first, header), *entries = rows
    names = [_COLUMNS.get(cell.strip().lower().replace("_", "").replace(" ", ""), "") for cell in header]
    if not any(names):
        separator = "; separate the columns with commas instead of semicolons" if ";" in "".join(header) else ""
        raise AllowListError(file, first, f"the header row names none of {', '.join(FACTS)}{separator}")
    found = [entry for line, row in entries for entry in _entries(file, line, names, row)]
    if not found:
        raise AllowListError(file, first, "no row follows the header row")
    return found


def _entries(file: str, line: int, names: list[str], row: list[str]) -> list[dict[str, str]]:
    if len(row) > len(names):
        raise AllowListError(file, line, f"it has {len(row)} columns, but the header row has {len(names)}")
    cells = [(name, cell.strip()) for name, cell in zip(names, row, strict=False) if name and cell.strip()]
    if not cells:
        raise AllowListError(file, line, "it has no fact of a machine")
    for name, cell in cells:
        if len(cell) > MAX_CELL or not FACTS[name](cell):
            raise AllowListError(file, line, f"'{cell[:80]}' is not a {name} that identifies a machine")
    return [{name: FACTS[name](cell)} for name, cell in cells]
