"""A node that is being made up: what the fields of the form say, and the body that they make.

All of it is carried from step to step in the form itself, so nothing is kept anywhere until the node is created. The
one secret is asked for at the last step, and is never carried.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOKEN, PRINCIPAL, MANAGED, ARC = "bootstrapToken", "servicePrincipal", "managedIdentity", "arc"
METHODS = (TOKEN, PRINCIPAL, MANAGED, ARC)
COMPONENTS = ("containerd", "runc", "cni", "npd")
VERSIONS = ("kubernetes", *COMPONENTS)
SECRET = "secret"  # noqa: S105 - the name of a field
REVIEW = 5
FIELDS: Mapping[int, tuple[str, ...]] = {
    1: ("cluster", "name"),
    2: ("method", "kubelet", "sp-client", "sp-proof", "sp-tenant", "mi-client", "mi-principal", "arc-principal"),
    3: (*VERSIONS, "monitor", "drift", "pods"),
    4: (),  # labels and taints, which are rows
    REVIEW: (SECRET,),
}
DEFAULTS = {"method": TOKEN, "kubelet": TOKEN, "sp-proof": "secret", "monitor": "yes", "drift": "log"}
ROWS = {"label": ("key", "value"), "taint": ("key", "value", "effect")}
MOST_ROWS = {"label": 40, "taint": 20}  # a form has so many fields and no more
LONGEST = 2048  # characters of a field that are looked at
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")

Row = tuple[str, ...]


@dataclass(frozen=True)
class Draft:
    values: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    labels: tuple[Row, ...] = ()
    taints: tuple[Row, ...] = ()

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def carried(self, step: int) -> Iterator[tuple[str, str]]:
        """The fields of all other steps, by name."""
        for number, names in FIELDS.items():
            if number not in {step, REVIEW}:
                yield from ((name, self[name]) for name in names if self[name])
        if step != 4:
            yield from self.cells()

    def cells(self) -> Iterator[tuple[str, str]]:
        for kind, rows in (("label", self.labels), ("taint", self.taints)):
            for number, row in enumerate(rows):
                yield from ((cell(kind, part, number), text) for part, text in zip(ROWS[kind], row, strict=True))

    def with_row(self, kind: str) -> Draft:
        rows = self.labels if kind == "label" else self.taints
        return self._rows(kind, (*rows, _empty(kind)) if len(rows) < MOST_ROWS[kind] else rows)

    def without_row(self, kind: str, number: int) -> Draft:
        rows = self.labels if kind == "label" else self.taints
        return self._rows(kind, (*rows[:number], *rows[number + 1 :]))

    def _rows(self, kind: str, rows: tuple[Row, ...]) -> Draft:
        return replace(self, labels=rows) if kind == "label" else replace(self, taints=rows)

    @property
    def monitored(self) -> bool:
        """A token cannot ask for news, so a node that has nothing else is let alone once it has joined."""
        return self["monitor"] == "yes" and self["method"] != TOKEN

    @property
    def needs_secret(self) -> bool:
        return self["method"] == PRINCIPAL and self["sp-proof"] != "certificate"

    def body(self, secret: str = "") -> dict[str, Any]:
        """What is sent to the API; what was left empty is left out."""
        node = {
            "labels": {key: value for key, value in self.labels if key},
            "taints": [_taint(row) for row in self.taints if row[0]],
            "maxPods": _number(self["pods"]),
            "driftPolicy": self["drift"],
        }
        properties = {
            "continuousMonitoring": self.monitored,
            "azureAuth": self._azure(secret),
            "kubernetesAuth": {"method": TOKEN if self["method"] == TOKEN else self["kubelet"]},
            "versions": _said({name: self[name] for name in VERSIONS}),
            "nodeConfig": _said(node),
        }
        return {"properties": _said(properties)}

    def _azure(self, secret: str) -> dict[str, Any]:
        method = self["method"]
        if method == TOKEN:
            return {}
        proof = {"clientSecret": secret} if self.needs_secret else {"certificateOnMachine": True}
        blocks: dict[str, dict[str, Any]] = {
            PRINCIPAL: {"clientId": self["sp-client"], **proof, "clientTenant": self["sp-tenant"]},
            MANAGED: {"clientId": self["mi-client"], "principalId": self["mi-principal"]},
            ARC: {"principalId": self["arc-principal"]},
        }
        block = _said(blocks.get(method, {}))
        return {"method": method, **({method: block} if block or method == PRINCIPAL else {})}


def draft(form: Mapping[str, str]) -> Draft:
    """What a form says. Spaces around a value are never meant."""
    plain = {name: text.strip()[:LONGEST] for name, text in form.items()}
    names = [name for step, names in FIELDS.items() if step != REVIEW for name in names]
    values = {name: plain[name] for name in names if plain.get(name)}
    return Draft(values, _read_rows(plain, "label"), _read_rows(plain, "taint"))


def cell(kind: str, part: str, number: int) -> str:
    return f"{kind}-{part}-{number}"


def _read_rows(form: Mapping[str, str], kind: str) -> tuple[Row, ...]:
    """Those with something in them; which effect an empty one has says nothing."""
    numbers = range(MOST_ROWS[kind])
    rows = [tuple(form.get(cell(kind, part, number), "") for part in ROWS[kind]) for number in numbers]
    return tuple(row for row in rows if any(row[:2]))


def _empty(kind: str) -> Row:
    return ("", "") if kind == "label" else ("", "", EFFECTS[0])


def _taint(row: Row) -> dict[str, str]:
    key, value, effect = row
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _number(text: str) -> int | str:
    """What is no number goes to the API as it is, which says so."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _said(block: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if value not in ("", {}, [])}
