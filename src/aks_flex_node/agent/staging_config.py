"""The next configuration of the provider, for which the node only downloads and verifies artifacts, and the record of
what was staged for it.

The record is in the directory of the staged programs, so that both are lost together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.paths import NEXT_CONFIG, STAGING_CONFIG
from aks_flex_node.agent.provider.poll_result import NextConfig, parse_next_config
from aks_flex_node.agent.reconcile.program_stager import staging_folder
from aks_flex_node.host.actions import Remove, WriteFile
from aks_flex_node.host.records import RecordFile
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from aks_flex_node.host.host import Host
    from aks_flex_node.settings.models import NodeConfig

LEFTOVERS = "leftovers"  # the identity of a job that only removes


@frozen
class StagingConfig:
    pool_revision: int
    config: dict[str, Any] = field(repr=False)
    identity: str = ""  # the digest of its file


@frozen
class StagedPrograms:
    """The record of what is staged: the identity of the configuration, and the names of its programs."""

    identity: str
    trees: tuple[str, ...]


@frozen
class StagingStatus:
    """What the node is to stage, and what it has staged."""

    pool_revision: int = 0  # of the next configuration; 0 if there is none
    identity: str = ""  # of the next configuration
    is_complete: bool = False  # all its programs are staged or installed
    has_leftovers: bool = False  # programs of an earlier next configuration are on the disk, and nothing needs them

    @property
    def staged_revision(self) -> int:
        """The revision whose programs are staged; 0 if there is none."""
        return self.pool_revision if self.is_complete else 0

    @property
    def pending(self) -> str:
        """What the staging job is to work on: the identity of a configuration, or leftovers."""
        return (self.identity or LEFTOVERS) if self.is_due else ""

    @property
    def is_due(self) -> bool:
        return self.has_leftovers or (bool(self.identity) and not self.is_complete)


def read_config(host: Host) -> StagingConfig | None:
    """Reads the next configuration; None when there is none or its file is damaged."""
    content = host.read(STAGING_CONFIG)
    try:
        found, _ = parse_next_config(json.loads(content or b"null"))
    except (ValueError, RecursionError):
        return None
    if found is None or content is None:
        return None
    return StagingConfig(found.pool_revision, dict(found.config), hashlib.sha256(content).hexdigest())


def store_config(host: Host, following: NextConfig | None) -> None:
    """Stores the next configuration, or removes the stored one."""
    if following is None:
        if host.stat(STAGING_CONFIG) is not None:
            host.apply(Remove(STAGING_CONFIG))
        return
    document = {"poolRevision": following.pool_revision, "config": following.config}
    content = (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()
    if host.read(STAGING_CONFIG) != content:
        host.apply(WriteFile(STAGING_CONFIG, content, 0o600, secret=True))


def record_file(folder: str) -> RecordFile[StagedPrograms]:
    """Returns the file in the directory of the staged programs."""
    return RecordFile(f"{folder}/staged.json", StagedPrograms)


def read_status(host: Host, config: NodeConfig) -> StagingStatus:
    """Compares the next configuration with what is staged. `config` is the configuration in effect."""
    folder, following = staging_folder(config), read_config(host)
    if following is None:
        is_needed = host.stat(NEXT_CONFIG) is not None  # perhaps for the configuration that is to be applied now
        return StagingStatus(has_leftovers=host.stat(folder) is not None and not is_needed)
    staged = record_file(folder).read(host)
    is_complete = (
        staged is not None
        and staged.identity == following.identity
        and all(host.stat(f"{folder}/{name}") for name in staged.trees)
    )
    return StagingStatus(following.pool_revision, following.identity, is_complete)
