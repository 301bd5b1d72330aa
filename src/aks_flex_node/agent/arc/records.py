"""What we made, in Azure and on this machine: written down before it is made, so that leaving knows what is ours."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile
from aks_flex_node.host.disk import beside

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Record:
    machine: str = ""  # its ARM id
    principal: str = ""  # the object id of its identity
    connected: bool = False  # by us
    made: bool = False  # Azure had no machine of that name before
    installed: bool = False  # azcmagent, by us
    found: tuple[str, ...] = ()  # users and directories of azcmagent that were there before us
    assignments: tuple[str, ...] = ()  # made by us
    settled: str = ""  # what was wanted when all was seen to be done


class Records:
    """The record of this machine."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        self._host = host
        self.path = f"{config.paths.data_dir}/arc.json"

    def read(self) -> Record:
        """What was written; a record that cannot be read says that nothing is ours, and nothing is taken away."""
        try:
            told: dict[str, Any] = json.loads(self._host.read(self.path) or b"{}")
            known = {key: value for key, value in told.items() if key in Record.__dataclass_fields__}
            lists = {key: tuple(known.get(key) or ()) for key in ("found", "assignments")}
            return Record(**{**known, **lists})
        except (ValueError, AttributeError, TypeError):
            return Record()

    @property
    def exists(self) -> bool:
        return self._host.look(self.path) is not None

    def change(self, **changes: Any) -> Record:
        before = self.read()
        after = replace(before, **changes)
        if after != before or not self.exists:
            folder = self.path.rpartition("/")[0]
            if self._host.look(folder) is None:
                self._host.do(MakeDirectory(folder, 0o700))
            self._host.do(WriteFile(self.path, (json.dumps(asdict(after), indent=1) + "\n").encode(), 0o600))
        return after

    def forget(self) -> None:
        """Also one that was being written when a run was killed."""
        if self.exists or self._host.look(str(beside(Path(self.path)))):
            self._host.do(Remove(self.path))
