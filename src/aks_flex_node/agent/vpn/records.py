"""What was made in Azure for this machine's VPN, written down before it is made."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.vpn import record_file
from aks_flex_node.azure.operations import Operation
from aks_flex_node.host.actions import MakeDirectory, Remove, WriteFile

if TYPE_CHECKING:
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host


@dataclass(frozen=True)
class Record:
    settings: str = ""  # a fingerprint of the settings that it was made with
    network: str = ""  # ids in Azure
    gateway: str = ""
    made: tuple[str, ...] = ()  # what was not there before us, or may have come from us
    roots: tuple[str, ...] = ()  # names of root certificates of ours that are, or may be, on the gateway
    former: tuple[tuple[str, str], ...] = ()  # gateways before this one, each with such a name
    active: str = ""  # the one of them that this machine shows itself by
    operation: Operation | None = None  # that Azure was last seen at
    started: str = ""  # a hash of the configuration that the client runs with
    server: str = ""  # name and port of the API server
    name_servers: tuple[str, ...] = ()


def read(host: Host, config: NodeConfig) -> Record:
    """One that is lost or damaged knows of nothing; what it was about is found again by name."""
    try:
        told = json.loads(host.read(record_file(config)) or b"{}")
        known = {key: value for key, value in told.items() if key in Record.__dataclass_fields__}
        for key in ("made", "roots", "name_servers"):
            known[key] = tuple(str(each) for each in known.get(key, ()))
        known["former"] = tuple((str(gateway), str(name)) for gateway, name in known.get("former", ()))
        return Record(**{**known, "operation": _operation(known.get("operation"))})
    except (ValueError, AttributeError, TypeError):
        return Record()


def _operation(told: dict[str, Any] | None) -> Operation | None:
    """Another release may have written more of it than we know."""
    known = {key: value for key, value in (told or {}).items() if key in Operation.__dataclass_fields__}
    return Operation(**known) if known else None


class Book:
    """The record, kept on the disk whenever it changes."""

    def __init__(self, host: Host, config: NodeConfig) -> None:
        self._host = host
        self._config = config
        self.now = read(host, config)

    def note(self, **changes: object) -> None:
        changed = replace(self.now, **changes)  # type: ignore[arg-type]
        if changed == self.now:
            return
        self.now = changed
        path = record_file(self._config)
        if self._host.look(path.rpartition("/")[0]) is None:
            self._host.do(MakeDirectory(path.rpartition("/")[0], 0o700))
        self._host.do(WriteFile(path, (json.dumps(asdict(changed), indent=1) + "\n").encode(), 0o600))

    def close(self) -> None:
        """Nothing in Azure is ours any more, or somebody was told what is."""
        self.now = Record()
        if self._host.look(record_file(self._config)) is not None:
            self._host.do(Remove(record_file(self._config)))

    def note_made(self, resource: str) -> None:
        """To be called before something is made, when it is not there yet."""
        if resource not in self.now.made:
            self.note(made=(*self.now.made, resource))
