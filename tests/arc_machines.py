"""A simulated machine with packages as files below a root, and a simulated Azure in one file, for crash tests."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc.azure_client import ArcCloud
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.azure.arm import ArmClient, AzureCallError, refused_error
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Run, StartUnit
from aks_flex_node.host.host import CommandResult, UnitState
from tests.crash.simulated_host import SimulatedSystem
from tests.openpgp_keys import FINGERPRINT, KEY
from tests.unit.agent.config.builders import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from aks_flex_node.host.actions import Action
    from aks_flex_node.settings.models import NodeConfig

CLUSTER = "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.ContainerService/managedClusters/cluster-1"
MACHINE = "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.HybridCompute/machines/edge-1"
AZURE = ".azure.json"  # not part of the machine, but survives a kill
UNIT = "[Service]\nExecStart=/opt/azcmagent/bin/himds\n"
SETTINGS: dict[str, object] = {
    "azure.subscriptionId": "sub-1",
    "azure.tenantId": "tenant-1",
    "azure.resourceGroup": "group-1",
    "azure.location": "westeurope",
    "azure.targetCluster.resourceId": CLUSTER,
    "azure.arc.enabled": True,
    "azure.arc.autoRoleAssignment": True,
    "azure.arc.tags": {"site": "one"},
}


def config(**changes: object) -> NodeConfig:
    """Returns a configuration with Arc; `arc__waitSeconds=5` sets `azure.arc.waitSeconds`."""
    changed = {f"azure.{name.replace('__', '.')}": value for name, value in changes.items()}
    own = {"azure.arc.package.keyFingerprints": [FINGERPRINT]}
    return load_text(settings({**SETTINGS, **own, **changed}), "test.json", {}, {}).config


class Clock:
    """A clock that advances only when code waits."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


class Azure(ArmClient, ArcCloud):
    """A simulated ARM, directory and package server. Its state is in one file."""

    def __init__(self, root: Path, before: Callable[[str], object] = lambda _: None) -> None:
        self._file = root / AZURE
        self._before = before  # called before every call
        self.clock = Clock()
        self.faults: dict[str, AzureCallError] = {}  # by prefix of the call, "PUT /sub…"
        self.down = False
        self.throttled = 0  # number of calls to throttle
        self.effective_after = 0.0
        self.known_after = 0.0
        self.calls: list[str] = []
        self.resources: dict[str, dict[str, Any]] = {}  # others than machines, which only tests change

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self._file.read_text()) if self._file.exists() else {"machines": {}, "roles": {}}

    def keep(self, state: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(state, indent=1, sort_keys=True))

    @contextmanager
    def operator(self) -> Iterator[Azure]:
        yield self

    @contextmanager
    def machine(self) -> Iterator[Azure]:
        yield self

    def token(self) -> str:
        if self.down:
            raise refused_error(503, "")
        return "operators-token"

    def text(self, url: str) -> str:
        assert url.startswith("https://packages.microsoft.com/keys/")
        return KEY

    def get(self, path: str, api_version: str, **query: str) -> dict[str, Any]:  # noqa: ARG002
        self._record("GET", path)
        found: dict[str, Any] | None = {**self.state["machines"], **self.resources}.get(path)
        if found is None:
            raise refused_error(404, '{"error": {"code": "ResourceNotFound", "message": "No."}}')
        return found

    def put(self, path: str, api_version: str, body: Any) -> dict[str, Any]:  # noqa: ARG002
        self._record("PUT", path)
        if self.clock.time < self.known_after:
            raise refused_error(
                400, '{"error": {"code": "PrincipalNotFound", "message": "Principal does not exist."}}'
            )
        state = self.state
        state["roles"][path] = body["properties"]
        self.keep(state)
        return {}

    def patch(self, path: str, api_version: str, body: Any) -> dict[str, Any]:  # noqa: ARG002
        self._record("PATCH", path)
        state = self.state
        state["machines"][path] |= body
        self.keep(state)
        return {}

    def delete(self, path: str, api_version: str) -> None:  # noqa: ARG002
        self._record("DELETE", path)
        state = self.state
        for kind in ("roles", "machines"):
            state[kind].pop(path, None)
        self.keep(state)

    def list(self, path: str, api_version: str, **query: str) -> list[dict[str, Any]]:  # noqa: ARG002
        self._record("GET", path)
        roles = self.state["roles"].values() if self.clock.time >= self.effective_after else ()
        permissions = {
            "acdd72a7-3385-48ef-bd42-f606fba81ae7": {"actions": ["*/read"]},
            "b1ff04bb-8a4e-4dc4-8eb5-8693973ce19b": {"dataActions": ["Microsoft.ContainerService/managedClusters/*"]},
            "0ab0b1a8-8aac-4efd-b8c2-3ee1fb270be8": {
                "actions": ["Microsoft.ContainerService/managedClusters/listClusterAdminCredential/action"]
            },
            "4abbcc35-e782-43d8-92c5-2d3f1bd2253f": {
                "actions": ["Microsoft.ContainerService/managedClusters/listClusterUserCredential/action"]
            },
            "4d97b98b-1d4f-4787-a291-c67834d212e7": {"actions": ["Microsoft.Network/*"]},
        }
        return [permissions[each["roleDefinitionId"].rpartition("/")[2]] for each in roles]

    def connect(self, told: dict[str, str]) -> str:
        """Simulates what azcmagent does in Azure."""
        assert told["access-token"] == "operators-token"
        names = [told[name] for name in ("subscription-id", "resource-group", "resource-name")]
        path = "/subscriptions/{}/resourceGroups/{}/providers/Microsoft.HybridCompute/machines/{}".format(*names)
        tags = dict(pair.split("=") for pair in told.get("tags", "").split(",") if pair)
        state = self.state
        made = {"identity": {"principalId": "principal-1"}, "location": told["location"], "tags": tags}
        state["machines"].setdefault(path, made)
        self.keep(state)
        return path

    def _record(self, method: str, path: str) -> None:
        self._before(f"{method} {path}")
        self.calls.append(f"{method} {path}")
        if self.down:
            raise AzureCallError("arm-unreachable", "It cannot be reached.", "", retryable=True)
        if self.throttled:
            self.throttled -= 1
            raise refused_error(429, "{}")
        for begin, fault in self.faults.items():
            if f"{method} {path}".startswith(begin):
                raise fault


class ArcSystem(SimulatedSystem):
    """Simulates systemd, apt and azcmagent on files."""

    def __init__(self, root: Path, azure: Azure) -> None:
        super().__init__(root)
        self._root, self._azure = root, azure
        self.refused = ""  # error message with which apt or azcmagent fails
        self.himds = "active"
        self.run: list[tuple[str, ...]] = []

    @property
    def registered(self) -> Path:
        return self._root / "var/opt/azcmagent/agentconfig.json"

    def ask(self, *argv: str, seconds: float) -> CommandResult:
        if argv == ("/usr/bin/azcmagent", "show", "-j"):
            known = json.loads(self.registered.read_text()) if self.registered.exists() else {}
            return CommandResult(0, json.dumps({"status": "Disconnected", "agentVersion": "1", **known}))
        return super().ask(*argv, seconds=seconds)

    def unit(self, name: str) -> UnitState:
        if name == "himdsd.service":
            return UnitState(name, exists=True, active=self.himds)
        return super().unit(name)

    def do(self, action: Action) -> None:
        match action:
            case StartUnit("himdsd.service"):
                raise MachineError("action-failed", "Could not start himdsd.service: it failed.", "")
            case Run(("env", _, "apt-get" | "dpkg", *_) | ("/usr/bin/azcmagent", *_) | ("userdel" | "groupdel", _)):
                self.run.append(action.argv)
                if self.refused:
                    raise MachineError("action-failed", f"Could not {action}: {self.refused}.", "")
                self._packages(action.argv)
            case _:
                super().do(action)

    def _packages(self, argv: tuple[str, ...]) -> None:
        match argv:
            case (_, _, "apt-get", "-c", conf, "install", *_):
                assert self._at(conf).exists()
                self._install()
            case (_, _, "apt-get", "-c", _, "purge", *_):
                for path in ("usr/bin/azcmagent", "opt/azcmagent/bin/himds", "usr/lib/systemd/system/himdsd.service"):
                    self._at(path).unlink(missing_ok=True)
                self._cut("var/lib/dpkg/status", "Package: azcmagent")
            case ("/usr/bin/azcmagent", "connect", "--config", told):
                assert self._at(told).stat().st_mode & 0o777 == 0o600
                path = self._azure.connect(json.loads(self._at(told).read_text()))
                self.registered.write_text(json.dumps({"status": "Connected", "resourceId": path}))
            case ("/usr/bin/azcmagent", "disconnect", *words):
                if "--force-local-only" not in words:
                    assert json.loads(self._at(words[1]).read_text()) == {"access-token": "operators-token"}
                    self._azure.delete(json.loads(self.registered.read_text())["resourceId"], "")
                self.registered.unlink(missing_ok=True)
            case ("userdel", user):
                self._cut("etc/passwd", f"{user}:")
            case ("groupdel", group):
                self._cut("etc/group", f"{group}:")

    def _install(self) -> None:
        for path, text in {
            "usr/bin/azcmagent": "azcmagent\n",
            "opt/azcmagent/bin/himds": "himds\n",
            "usr/lib/systemd/system/himdsd.service": UNIT,
        }.items():
            self._at(path).parent.mkdir(parents=True, exist_ok=True)
            self._at(path).write_text(text)
        for folder in ("var/opt/azcmagent", "etc/opt/azcmagent"):
            self._at(folder).mkdir(parents=True, exist_ok=True)
        self._add("etc/passwd", "himds:x:998:998::/:/usr/sbin/nologin\n")
        self._add("etc/group", "himds:x:998:\n")
        self._add("var/lib/dpkg/status", "Package: azcmagent\nStatus: install ok installed\n\n")

    def _at(self, path: str) -> Path:
        return self._root / path.lstrip("/")

    def _add(self, path: str, text: str) -> None:
        known = self._at(path).read_text()
        if text not in known:
            self._at(path).write_text(known + text)

    def _cut(self, path: str, start: str) -> None:
        whole, end = self._at(path).read_text(), "\n\n" if path.endswith("status") else "\n"
        parts = [part for part in whole.split(end) if part]
        self._at(path).write_text("".join(part + end for part in parts if not part.startswith(start)))


def seed(root: Path) -> Path:
    """Creates the relevant files of a new Debian machine."""
    for path, text in {
        "etc/os-release": "ID=debian\nVERSION_ID=12\nVERSION_CODENAME=bookworm\nPRETTY_NAME=Debian\n",
        "etc/passwd": "root:x:0:0::/root:/bin/sh\n",
        "etc/group": "root:x:0:\n",
        "usr/bin/apt-get": "apt-get\n",
        "var/lib/dpkg/status": "Package: base-files\nStatus: install ok installed\n\n",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    for folder in ("run", "var/opt", "etc/opt", "opt", "usr/lib/systemd/system", "etc/systemd/system"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    return root
