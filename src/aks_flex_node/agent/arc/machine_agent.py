"""azcmagent, the Azure Connected Machine agent: connects and disconnects the machine, and reports its status and
services. This module does not call Azure. Tokens are passed in a file that only root can read.
"""

from __future__ import annotations

import configparser
import json
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc.registration_state import ArcMachineSpec, ArcRecordStore, machine_id
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import Phase
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, Run, WriteFile
from aks_flex_node.host.disk import temporary_path
from aks_flex_node.host.host import CommandResult, Host, read_text
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.settings.models import NodeConfig


AZCMAGENT_PATHS = ("/usr/bin/azcmagent", "/opt/azcmagent/bin/azcmagent")
# Program directories of the Connected Machine agent and of the guest configuration that is installed with it.
PROGRAM_FOLDERS = ("/opt/azcmagent/", "/opt/GC_Ext/", "/opt/GC_Service/")
UNIT_FOLDERS = ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
METADATA_PROGRAM = "himds"  # serves the tokens of the machine's identity
SHOW_SECONDS = 20.0
STATUSES = ("Connected", "Disconnected", "Expired")


@frozen
class AzcmagentStatus:
    """The status that azcmagent reports."""

    status: str = ""
    id: str = ""  # ARM ID of the machine; empty if it is not registered
    location: str = ""
    version: str = ""
    heartbeat: str = ""

    @property
    def is_registered(self) -> bool:
        return bool(self.id)


def find_azcmagent(host: Host) -> str | None:
    """Returns the path of azcmagent, or None if it is not installed."""
    return next((path for path in AZCMAGENT_PATHS if host.stat(path)), None)


def read_status(host: Host, azcmagent: str) -> tuple[AzcmagentStatus | None, CommandResult]:
    """Returns the status that azcmagent reports, or None if it fails, and the result of the command."""
    result = host.query(azcmagent, "show", "-j", seconds=SHOW_SECONDS)
    return parse_show(result.out) if result.ok else None, result


def parse_show(text: str) -> AzcmagentStatus | None:
    """Parses the output of `azcmagent show -j`. Returns None if it is not valid."""
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
    """Returns the systemd units that run programs of azcmagent, with the path of each program."""
    found: dict[str, str] = {}
    for folder in UNIT_FOLDERS:
        for name in host.list_dir(folder):
            if name.endswith(".service") and name not in found:
                started = _program_of(read_text(host, f"{folder}/{name}"))
                if started.startswith(PROGRAM_FOLDERS):
                    found[name] = started
    return found


def _program_of(unit: str) -> str:
    """Returns the program that a unit file starts."""
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True, delimiters=("=",))
    try:
        parser.read_string(unit)
        argv = (parser.get("Service", "ExecStart", fallback="") or "").split()
    except configparser.Error:
        return ""
    return argv[0].lstrip("-+!@:") if argv else ""


def metadata_service(host: Host) -> str | None:
    """Returns the unit that runs HIMDS, the local identity endpoint. Its name depends on the version."""
    return next(
        (unit for unit, started in agent_services(host).items() if started.rpartition("/")[2] == METADATA_PROGRAM),
        None,
    )


def status(host: Host, config: NodeConfig) -> dict[str, Any]:
    """Returns the Arc section of `status` and `arc status`."""
    azcmagent = find_azcmagent(host)
    if not config.azure.arc.enabled and not ArcRecordStore(host, config).exists:
        return {"status": "disabled"}
    if azcmagent is None:
        return {"status": _registering_status(host, config)}
    shown, result = read_status(host, azcmagent)
    if shown is None:
        return {"status": "unknown", "message": f"azcmagent failed: {result.last_line}", **_services(host)}
    if not shown.is_registered:
        return {"status": _registering_status(host, config), "agentVersion": shown.version, **_services(host)}
    return {
        "status": shown.status if shown.status in STATUSES else "unknown",
        "machine": shown.id.rpartition("/")[2],
        "resourceId": shown.id,
        "location": shown.location,
        "principalId": ArcRecordStore(host, config).current.principal,
        "agentVersion": shown.version,
        "lastHeartbeat": shown.heartbeat,
        **_services(host),
    }


def _registering_status(host: Host, config: NodeConfig) -> str:
    state = node_state.load(host, config)
    return "Registering" if state.phase is Phase.ARC_REGISTERING else "NotRegistered"


def _services(host: Host) -> dict[str, Any]:
    return {"services": {unit: host.unit(unit).active for unit in sorted(agent_services(host))}}


SETTINGS_FILE = "/run/aks-flex-node-arc.json"  # on tmpfs: gone after a reboot even if it was not removed
COMMAND_SECONDS = 300.0


@frozen
class Azcmagent:
    host: Host
    program: str

    def status(self) -> AzcmagentStatus:
        shown, result = read_status(self.host, self.program)
        if shown is None:
            raise MachineError(
                "azcmagent-not-responding",
                f"azcmagent does not report its status: {result.last_line.rstrip('.')}.",
                f"Run `{self.program} show` for details and `{self.program} check` to check its network access.",
                retryable=True,
            )
        return shown

    def connect(self, spec: ArcMachineSpec, token: str) -> None:
        settings = {
            "access-token": token,
            "subscription-id": spec.subscription,
            "resource-group": spec.resource_group,
            "resource-name": spec.name,
            "tenant-id": spec.tenant,
            "location": spec.location,
            "cloud": spec.cloud,
            "tags": ",".join(
                f"{key}={value}" for key, value in sorted(spec.tags.items()) if not set(key + value) & set(",='\"")
            ),
        }
        with self._settings_file({key: value for key, value in settings.items() if value}):
            argv = (self.program, "connect", "--config", SETTINGS_FILE)
            self._run(argv, f"connect this machine to Azure Arc as {spec.name}")

    def use_proxy(self, url: str) -> None:
        self._run((self.program, "config", "set", "proxy.url", url), "configure the proxy of azcmagent")

    def disconnect(self, token: str) -> None:
        """Disconnects azcmagent and deletes the machine resource in Azure."""
        with self._settings_file({"access-token": token}):
            self._run(
                (self.program, "disconnect", "--config", SETTINGS_FILE), "disconnect this machine from Azure Arc"
            )

    def disconnect_locally(self) -> None:
        """Disconnects azcmagent without calling Azure."""
        self._run((self.program, "disconnect", "--force-local-only"), "disconnect azcmagent locally")

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
                f"Run `{self.program} check` to check its network access, and read its log "
                "`/var/opt/azcmagent/log/azcmagent.log`. Codes such as AZCM0042 are explained at "
                "https://aka.ms/arc/azcmerror.",
                retryable=True,
            ) from error


def remove_settings_file(host: Host) -> None:
    """Removes the settings file of an interrupted run, complete or partial: it contains a token."""
    if host.stat(SETTINGS_FILE) or host.stat(str(temporary_path(Path(SETTINGS_FILE)))):
        host.apply(Remove(SETTINGS_FILE))
