"""What can go wrong with the store, beside `Conflict`, which is an answer.

StoreError              the store cannot do what was asked
├── Unavailable         not now: the same may work in a while
└── Newer               the data were written by a newer version of this program
"""

from __future__ import annotations

from aks_flex_node.errors import FlexError


class StoreError(FlexError):
    pass


class Unavailable(StoreError):  # noqa: N818 - it says what is the case, as Conflict does
    """The database is away, or full, or busy. `executed` says whether a write may have been done nevertheless."""

    def __init__(self, message: str, hint: str = "", *, executed: bool = False) -> None:
        super().__init__("store-unavailable", message, hint, again=True)
        self.executed = executed


class Newer(StoreError):  # noqa: N818
    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            "store-is-newer",
            f"The store has schema version {found}, and this program knows versions up to {known}.",
            "Run the newer program, or restore a backup that was made before the upgrade.",
        )
