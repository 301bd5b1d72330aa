"""Log configuration: one JSON object per line, with the request id where there is one."""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from aks_flex_node.timestamps import format_utc_microseconds

if TYPE_CHECKING:
    from aks_flex_rp.settings import LogSettings

EXTRAS = ("request", "operation", "status", "caller", "path", "source", "cluster", "node")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": format_utc_microseconds(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        line["message"] = record.getMessage()
        line |= {name: record.__dict__[name] for name in EXTRAS if record.__dict__.get(name) not in (None, "")}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(settings: LogSettings) -> None:
    handler = logging.StreamHandler(sys.stderr)
    plain = logging.Formatter("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonFormatter() if settings.format == "json" else plain)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for chatty in ("uvicorn.access", "httpx2", "azure", "asyncio"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
