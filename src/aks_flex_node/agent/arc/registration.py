"""A machine becomes one of Azure Arc's, with an identity and its roles; and is taken back from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.arc import agents, looking
from aks_flex_node.agent.arc.agents import Azcmagent
from aks_flex_node.agent.arc.clouds import API, Cloud, LiveCloud, find, principal_of
from aks_flex_node.agent.arc.leaving import Parting
from aks_flex_node.agent.arc.packages import Packages, missing
from aks_flex_node.agent.arc.records import Records
from aks_flex_node.agent.arc.roles import Roles
from aks_flex_node.agent.arc.wanted import Wanted, same, wanted
from aks_flex_node.agent.identities.clouds import resource_manager, ways_out
from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.patience import Patience
from aks_flex_node.errors import FlexError, MachineError
from aks_flex_node.host.actions import StartUnit

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.arc.clouds import MachinesArm
    from aks_flex_node.agent.reconcile.engine import Engine

SEEN_SECONDS = 60.0  # for Azure to show a machine that has just connected


class Registration:
    """`cloud` and `patience` are given by tests: an Azure of their own, and a clock."""

    def __init__(
        self,
        engine: Engine,
        note: Callable[[str], None],
        cloud: Cloud | None = None,
        patience: Callable[[float], Patience] = Patience,
    ) -> None:
        self.engine, self.host, self.config = engine, engine.host, engine.config
        self._note = note
        self._cloud = cloud or LiveCloud(self.config)
        self._patience = patience
        self._records = Records(self.host, self.config)
        self._packages = Packages(self.host, self.config, self._cloud.text)

    def run(self, *, afresh: bool = False) -> None:
        """Do what is missing. Azure is not asked about what was seen to be done before, unless `afresh`."""
        want = wanted(self.config, self.engine.machine)
        self._tidy()
        self._connect(self._install(), want)
        if self._records.read().settled == want.mark and not afresh:
            return
        with self._cloud.operator() as arm:
            machine = self._read_back(arm, want)
            self._bring_up_to_date(arm, want, machine)
            roles = Roles(self._records, self._note, self._patience(self.config.azure.arc.wait_seconds))
            if want.assign:
                roles.assign(arm, want.cluster, str(machine["identity"]["principalId"]))
        self._start_metadata_service()
        if self._have_roles(want, roles):
            self._records.change(settled=want.mark)
            self.engine.events.emit("arc-registered", f"{want.name} is registered with Azure Arc", machine=want.id)

    def take_back(self) -> list[str]:
        """Undo what is ours. What is left in Azure comes back as commands for somebody to type."""
        self._tidy()
        return Parting(self.host, self._cloud, self._records, self._packages, self._note).run()

    def _tidy(self) -> None:
        agents.tidy(self.host)
        self._packages.tidy()

    def _install(self) -> Azcmagent:
        """azcmagent as it is found, or else as it is installed."""
        found, record = looking.program(self.host), self._records.read()
        if found and not (record.installed and not self._packages.is_whole):
            return Azcmagent(self.host, found)
        if not self.config.azure.arc.package.install:
            raise missing("azure.arc.package.install says that it is not ours to install")
        if not record.installed:
            self._records.change(installed=True, found=self._packages.present())
        self._note("installing azcmagent")
        try:
            self._packages.install()
        except FlexError:
            if not record.installed and not self._packages.is_known:
                self._records.change(installed=False, found=())  # whoever installs it by hand now keeps it
            raise
        found = looking.program(self.host)
        if found is None:
            raise missing("its package did not bring it")
        return Azcmagent(self.host, found)

    def _connect(self, azcmagent: Azcmagent, want: Wanted) -> None:
        shown, record = azcmagent.shown(), self._records.read()
        if shown.is_registered and not same(shown.id, want.id):
            raise elsewhere(shown.id, want.id)
        if shown.is_registered and shown.status == "Expired":
            if not record.connected:
                raise expired(want.id)
            self._give_up(azcmagent, want)
        elif shown.is_registered:
            self._records.change(machine=want.id)
            return
        made = self._is_new(want)
        self._records.change(machine=want.id, connected=True, made=made, principal="", settled="")
        self._tell_of_proxy(azcmagent)
        self._note(f"connecting with Azure Arc as {want.name}")
        azcmagent.connect(want, self._cloud.token())

    def _tell_of_proxy(self, azcmagent: Azcmagent) -> None:
        """An azcmagent that is ours goes by our proxy. It takes no address of one but as a word that others see."""
        proxy = ways_out(self.config).proxy_for(resource_manager(self.config))
        if proxy is None or not self._records.read().installed:
            return
        if "@" in proxy:
            self._note("the proxy has a password, so set it for azcmagent yourself: azcmagent config set proxy.url")
        else:
            azcmagent.use_proxy(proxy)

    def _is_new(self, want: Wanted) -> bool:
        """Whether Azure has no machine of that name. One that a run of ours left half made is ours still."""
        record = self._records.read()
        if record.made and same(record.machine, want.id):
            return True
        with self._cloud.operator() as arm:
            return find(arm, want.id) is None

    def _give_up(self, azcmagent: Azcmagent, want: Wanted) -> None:
        """A connection whose identity has ended. Azure makes no new one under a name that it has, so that goes first;
        unless it is another machine's by now."""
        own = self._records.read().principal
        with self._cloud.operator() as arm:
            found = find(arm, want.id)
            if found is not None and own and same(principal_of(found), own):
                arm.delete(want.id, API)
        azcmagent.forget()

    def _read_back(self, arm: MachinesArm, want: Wanted) -> dict[str, Any]:
        """The machine as Azure has it, which may take a moment; with the identity that it was given."""
        patience = self._patience(SEEN_SECONDS)
        while True:
            try:
                machine = arm.get(want.id, API)
            except AzureCallError as error:
                if error.status != 404 and not error.again:
                    raise
                if not patience.pause():
                    raise gone(want.id) if error.status == 404 else error from error
                continue
            if principal := principal_of(machine):
                self._records.change(principal=principal)
                return machine
            if not patience.pause():
                raise gone(want.id)

    def _bring_up_to_date(self, arm: MachinesArm, want: Wanted, machine: dict[str, Any]) -> None:
        """Tags that others have put there stay."""
        tags = machine.get("tags") or {}
        if any(tags.get(key) != value for key, value in want.tags.items()):
            arm.patch(want.id, API, {"tags": {**tags, **want.tags}})
        there = str(machine.get("location") or "")
        if there and there.replace(" ", "").lower() != want.location.replace(" ", "").lower():
            self._note(f"the machine stays in {there}: Azure moves no machine to {want.location}")

    def _start_metadata_service(self) -> None:
        """Without it nobody here has the machine's identity."""
        unit = looking.metadata_service(self.host)
        if unit is None or self.host.unit(unit).running:
            return
        try:
            self.host.do(StartUnit(unit))
        except MachineError as error:
            raise MachineError(
                "himds-down",
                f"{unit}, which hands out the machine's identity, does not run: {error.message}",
                f"Look at `journalctl -u {unit} -n 50`, then run the same command again.",
                again=True,
            ) from error

    def _have_roles(self, want: Wanted, roles: Roles) -> bool:
        if not want.cluster:
            return True
        with self._cloud.machine() as arm:
            if want.assign:
                roles.wait(arm, want.cluster)
                return True
            return roles.look(arm, want.cluster, self._records.read().principal)


def elsewhere(there: str, here: str) -> MachineError:
    return MachineError(
        "arc-connected-elsewhere",
        f"This machine is connected with Azure Arc already, as {there}, and not as {here}. Nothing was changed.",
        "Set azure.subscriptionId, azure.arc.resourceGroup and azure.arc.machineName to what it is, or disconnect it "
        "first: `azcmagent disconnect`.",
    )


def expired(machine: str) -> MachineError:
    return MachineError(
        "arc-expired",
        f"The connection of {machine} with Azure Arc has expired: the machine was away for too long.",
        "It was made by somebody else, so it is left alone. Run `azcmagent disconnect --force-local-only`, delete "
        "the machine in Azure, then run the same command again.",
    )


def gone(machine: str) -> FlexError:
    return FlexError(
        "arc-machine-gone",
        f"azcmagent says that this machine is connected, and Azure has no {machine} with an identity.",
        "If it was deleted in Azure: `azcmagent disconnect --force-local-only`, then run the same command again.",
        again=True,
    )
