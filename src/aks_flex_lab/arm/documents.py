"""Reads ARM documents from requests, and stores them in JSON files that several processes share."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from aks_flex_lab.arm.arm_errors import invalid_content
from aks_flex_lab.files import file_lock, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from starlette.requests import Request

Document = dict[str, Any]
Content = TypeVar("Content")  # a list or a dict


class JsonFile(Generic[Content]):
    """A JSON file that is read at each call; a lock file prevents lost updates."""

    def __init__(self, file: Path, what: str, kind: type[Content], mode: int = 0o644) -> None:
        self._file = file
        self._what = what
        self._kind = kind
        self._mode = mode

    def read(self) -> Content:
        """Returns the content; empty when the file does not exist."""
        found: Content = json.loads(self._file.read_text()) if self._file.exists() else self._kind()
        return found

    def update(self, change: Callable[[Content], Content]) -> None:
        with file_lock(self._file.with_suffix(".lock"), self._what, wait=True):
            write_atomically(self._file, json.dumps(change(self.read()), indent=1), self._mode)


class DocumentStore:
    """Documents in a JSON file by their ID, which is case-insensitive."""

    def __init__(self, file: Path, what: str, mode: int = 0o644) -> None:
        self._file = JsonFile(file, what, list[Document], mode)

    def all(self) -> list[Document]:
        return self._file.read()

    def find(self, id: str) -> Document | None:  # noqa: A002 - ARM's own word
        return next((each for each in self.all() if each["id"].lower() == id.lower()), None)

    def put(self, document: Document) -> None:
        """Stores a document, and replaces the one with the same ID."""
        self._file.update(lambda documents: [*_without(documents, document["id"]), document])

    def remove(self, id: str) -> None:  # noqa: A002
        self._file.update(lambda documents: _without(documents, id))


def _without(documents: list[Document], id: str) -> list[Document]:  # noqa: A002
    return [each for each in documents if each["id"].lower() != id.lower()]


async def read_document(request: Request) -> Document:
    """Reads the JSON object in a request body; raises ARM's error if it is invalid."""
    try:
        document = await request.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise invalid_content()
    return document
