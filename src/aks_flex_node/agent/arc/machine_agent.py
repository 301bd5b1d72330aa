"""azcmagent, the Connected Machine agent: connects and disconnects the machine, and reports its status and services.
Azure is not asked here. Tokens are passed by a file that only root can read.
"""

from __future__ import annotations

import configparser
import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc.registration_state import ArcRecordStore, machine_id
from aks_flex_node.agent.paths import state_file
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, Run, WriteFile
from aks_flex_node.host.disk import temporary_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.arc.registration_state import ArcMachineSpec
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import CommandResult, Host


AZCMAGENT_PATHS = ("/usr/bin/azcmagent", "/opt/azcmagent/bin/azcmagent")
# Where the programs of the Connected Machine agent lie, the guest configuration that comes with it included.
PROGRAM_FOLDERS = ("/opt/azcmagent/", "/opt/GC_Ext/", "/opt/GC_Service/")
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
METADATA_PROGRAM = "himds"  # the program that hands out tokens of the machine's identity
SHOW_SECONDS = 20.0
STATUSES = ("Connected", "Disconnected", "Expired")


@dataclass(frozen=True)
class AzcmagentStatus:
    """What azcmagent says of itself."""

    status: str = ""
    id: str = ""  # of the machine in Azure; empty when it has none
    location: str = ""
    version: str = ""
    heartbeat: str = ""

    @property
    def is_registered(self) -> bool:
        return bool(self.id)


def find_azcmagent(host: Host) -> str | None:
    """Where azcmagent is."""
    return next((path for path in AZCMAGENT_PATHS if host.stat(path)), None)


def run_show(host: Host, azcmagent: str) -> CommandResult:
    return host.query(azcmagent, "show", "-j", seconds=SHOW_SECONDS)


def parse_show(text: str) -> AzcmagentStatus | None:
    """What `azcmagent show -j` says; None when that is nothing to go by."""
    try:
        document = json.loads(text)
        names = [str(document.get(key) or "") for key in ("subscriptionId", "resourceGroup", "resourceName")]
    except (ValueError, AttributeError):
        return None
    return AzcmagentStatus(
        str(document.get("status") or ""),
        str(document.get("resourceId") or "") or (machine_id(*names) if all(names) else ""),
        str(document.get("location") or ""),
        str(document.get("agentVersion") or ""),
        str(document.get("lastHeartbeat") or document.get("agentLastHeartbeat") or ""),
    )


def agent_services(host: Host) -> dict[str, str]:
    """The units whose program is one of azcmagent's, each with that program."""
    found: dict[str, str] = {}
    for folder in UNIT_FOLDERS:
        for name in host.list_dir(folder):
            if name.endswith(".service") and name not in found:
                started = _program_of((host.read(f"{folder}/{name}") or b"").decode(errors="replace"))
                if started.startswith(PROGRAM_FOLDERS):
                    found[name] = started
    return found


def _program_of(unit: str) -> str:
    """What a unit file starts."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    try:
        parser.read_string(unit)
        argv = (parser.get("Service", "ExecStart", fallback="") or "").split()
    except configparser.Error:
        return ""
    return argv[0].lstrip("-+!@:") if argv else ""


def metadata_service(host: Host) -> str | None:
    """The unit that answers as HIMDS, by whatever name."""
    return next(
        (unit for unit, started in agent_services(host).items() if started.rpartition("/")[2] == METADATA_PROGRAM),
        None,
    )


def status(host: Host, config: NodeConfig) -> dict[str, Any]:
    """For `status` and `arc status`."""
    azcmagent = find_azcmagent(host)
    if not config.azure.arc.enabled and not ArcRecordStore(host, config).exists:
        return {"status": "disabled"}
    if azcmagent is None:
        return {"status": _registering_status(host, config)}
    answer = run_show(host, azcmagent)
    shown = parse_show(answer.out) if answer.ok else None
    if shown is None:
        return {"status": "unknown", "message": f"azcmagent says: {answer.last_line}", **_services(host)}
    if not shown.is_registered:
        return {"status": _registering_status(host, config), "agentVersion": shown.version, **_services(host)}
    return {
        "status": shown.status if shown.status in STATUSES else "unknown",
        "machine": shown.id.rpartition("/")[2],
        "resourceId": shown.id,
        "location": shown.location,
        "principalId": ArcRecordStore(host, config).read().principal,
        "agentVersion": shown.version,
        "lastHeartbeat": shown.heartbeat,
        **_services(host),
    }


def _registering_status(host: Host, config: NodeConfig) -> str:
    state = node_state.read(host, state_file(config.paths.data_dir))
    return "Registering" if state.phase is Phase.ARC_REGISTERING else "NotRegistered"


def _services(host: Host) -> dict[str, Any]:
    return {"services": {unit: host.unit(unit).active for unit in sorted(agent_services(host))}}


SETTINGS_FILE = "/run/aks-flex-node-arc.json"  # gone with the next boot, if nobody removes it before
COMMAND_SECONDS = 300.0


@dataclass(frozen=True)
class Azcmagent:
    host: Host
    program: str

    def status(self) -> AzcmagentStatus:
        answer = run_show(self.host, self.program)
        shown = parse_show(answer.out) if answer.ok else None
        if shown is None:
            raise MachineError(
                "azcmagent-not-responding",
                f"azcmagent does not say how it is: {answer.last_line.rstrip('.')}.",
                f"Run `{self.program} show` to see more; `{self.program} check` looks at its network.",
                retryable=True,
            )
        return shown

    def connect(self, wanted: ArcMachineSpec, token: str) -> None:
        settings = {
            "access-token": token,
            "subscription-id": wanted.subscription,
            "resource-group": wanted.resource_group,
            "resource-name": wanted.name,
            "tenant-id": wanted.tenant,
            "location": wanted.location,
            "cloud": wanted.cloud,
            "tags": ",".join(
                f"{key}={value}" for key, value in sorted(wanted.tags.items()) if is_plain_tag(key + value)
            ),
        }
        with self._settings_file({key: value for key, value in settings.items() if value}):
            argv = (self.program, "connect", "--config", SETTINGS_FILE)
            self._run(argv, f"connect this machine with Azure Arc as {wanted.name}")

    def use_proxy(self, url: str) -> None:
        self._run((self.program, "config", "set", "proxy.url", url), "tell azcmagent of the proxy")

    def disconnect(self, token: str) -> None:
        """From Azure, too: its machine resource goes."""
        with self._settings_file({"access-token": token}):
            self._run(
                (self.program, "disconnect", "--config", SETTINGS_FILE), "disconnect this machine from Azure Arc"
            )

    def disconnect_locally(self) -> None:
        """Only here: Azure is not told."""
        self._run((self.program, "disconnect", "--force-local-only"), "make azcmagent forget its machine")

    @contextmanager
    def _settings_file(self, settings: dict[str, str]) -> Iterator[None]:
        self.host.apply(WriteFile(SETTINGS_FILE, json.dumps(settings).encode(), 0o600, secret=True))
        try:
            yield
        finally:
            self.host.apply(Remove(SETTINGS_FILE))

    def _run(self, argv: tuple[str, ...], why: str) -> None:
        try:
            self.host.apply(Run(argv, why, seconds=COMMAND_SECONDS))
        except MachineError as error:
            raise MachineError(
                "azcmagent-failed",
                f"Could not {why}: {error.message.partition(': ')[2] or error.message}",
                f"`{self.program} check` looks at its network; its own log is /var/opt/azcmagent/log/azcmagent.log. "
                "A code such as AZCM0042 is explained at https://aka.ms/arc/azcmerror.",
                retryable=True,
            ) from error


def is_plain_tag(text: str) -> bool:
    """Whether azcmagent can be told of a tag: it takes all of them as one word. The others Azure is told by us."""
    return not set(text) & set(",='\"")


def remove_settings_file(host: Host) -> None:
    """What a run that was killed left, be it half written: it holds a token."""
    if host.stat(SETTINGS_FILE) or host.stat(str(temporary_path(Path(SETTINGS_FILE)))):
        host.apply(Remove(SETTINGS_FILE))
