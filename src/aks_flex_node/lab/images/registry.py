"""Debian's docker-registry: how it is configured and started. The lab's other parts start and stop it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = "docker-registry"


@dataclass(frozen=True)
class RegistrySettings:
    address: str  # such as 198.18.0.5:443
    storage: Path
    cert: Path
    key: Path


def registry_config(settings: RegistrySettings) -> str:
    """The YAML text. JSON's quotes are YAML's, so a path with odd letters stays one word."""
    return f"""\
version: 0.1
log:
  level: info
  accesslog:
    disabled: false
storage:
  filesystem:
    rootdirectory: {json.dumps(str(settings.storage))}
  delete:
    enabled: true
  cache:
    blobdescriptor: inmemory
http:
  addr: {json.dumps(settings.address)}
  relativeurls: true
  tls:
    certificate: {json.dumps(str(settings.cert))}
    key: {json.dumps(str(settings.key))}
"""


def registry_argv(config: Path) -> tuple[str, ...]:
    return (PROGRAM, "serve", str(config))
