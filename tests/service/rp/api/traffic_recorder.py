"""Records requests and responses for Azure's validator."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OURS = ("/subscriptions/", "/providers/")
NO_OPERATION = frozenset(
    {
        "HttpMethodNotAllowed",
        "InvalidApiVersionParameter",
        "InvalidResourceType",
        "MissingApiVersionParameter",
    }
)


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def properties(self) -> Any:
        return self.json["properties"]

    def assert_refused(self, status: int, code: str, target: str | None = None) -> None:
        """Checks an error in ARM's format."""
        assert (self.status, self.error["code"]) == (status, code), self.text
        assert target is None or self.error["target"] == target, self.text
        assert self.headers["x-ms-error-code"] == code, self.headers
        assert self.headers["content-type"].startswith("application/json"), self.headers
        assert self.error["message"], self.text
        uuid.UUID(self.headers["x-ms-request-id"])


@dataclass(frozen=True)
class Exchange:
    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes | None
    answer: Answer

    @property
    def is_refused(self) -> bool:
        return self.answer.status >= 400

    @property
    def is_an_operation(self) -> bool:
        """Returns whether the request was for an operation of the contract."""
        path = "/" + self.url.partition("://")[2].partition("/")[2]
        return path.lower().startswith(OURS) and self.answer.headers.get("x-ms-error-code") not in NO_OPERATION

    def document(self) -> dict[str, Any]:
        """Returns the format of `oav validate-traffic`, without the body of a rejected request."""
        body = {} if self.is_refused else _parsed(self.body)
        request = {"headers": dict(self.headers), "method": self.method, "url": self.url, "body": body}
        answer = {
            "statusCode": str(self.answer.status),
            "headers": dict(self.answer.headers),
            "body": _parsed(self.answer.content),
        }
        return {"liveRequest": request, "liveResponse": answer}


@dataclass
class Recording:
    exchanges: list[Exchange] = field(default_factory=list)

    def add(self, exchange: Exchange) -> None:
        self.exchanges.append(exchange)

    def write(self, folder: Path) -> int:
        """Writes one file for each exchange, as `scripts/contract traffic` needs them; returns their number."""
        kept = [each for each in self.exchanges if each.is_an_operation]
        for number, each in enumerate(kept):
            room = folder / ("refused" if each.is_refused else "accepted")
            room.mkdir(exist_ok=True)
            (room / f"{number:05}.json").write_text(json.dumps(each.document()))
        return len(kept)


def _parsed(content: bytes | None) -> Any:
    try:
        return json.loads(content) if content else {}
    except (ValueError, RecursionError):
        return content.decode(errors="replace") if content else {}
