"""The phases of a join, in their order. Options, progress, state file and errors use their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components import vpn
from aks_flex_node.agent.components.catalog import SEQUENCE
from aks_flex_node.errors import CommandUsageError
from aks_flex_node.lean_dataclass import frozen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aks_flex_node.agent.reconcile.component import Component


@frozen
class JoinPhase:
    name: str
    title: str
    optional: bool = False  # `--skip-phase` can leave it out
    quiet: bool = False  # progress shows only its failure


CONFIGURATION = JoinPhase("configuration", "the configuration")
POLICY = JoinPhase("policy", "the policy of this machine", quiet=True)
CLUSTER = JoinPhase("cluster", "facts of the cluster", quiet=True)
IDENTITY = JoinPhase("identity", "the node that this machine is", quiet=True)
PREFLIGHT = JoinPhase("preflight", "checks of this machine", optional=True)
SIGN_IN = JoinPhase("sign-in", "sign-in to Azure, for Arc or the VPN", quiet=True)
STORE = JoinPhase("store", "the stored configuration", quiet=True)
ARTIFACTS = JoinPhase("artifacts", "programs, downloaded beside the next phases", quiet=True)
ARC = JoinPhase("arc", "Azure Arc registration", optional=True)
VPN = JoinPhase(vpn.COMPONENT.name, "VPN to the cluster's network", optional=True)
READINESS = JoinPhase("readiness", "the node is registered and Ready")
DAEMON = JoinPhase("daemon", "the agent's own service", quiet=True)
BEFORE_CHANGES = (CONFIGURATION, POLICY, CLUSTER, IDENTITY, PREFLIGHT, SIGN_IN)
COMPONENTS = tuple(
    JoinPhase(component.name, component.title, optional=True) for component in SEQUENCE if component.name != VPN.name
)
PREREQUISITES = frozenset((ARC.name, VPN.name))
JOIN_PHASES = (*BEFORE_CHANGES, STORE, ARTIFACTS, ARC, VPN, *COMPONENTS, READINESS, DAEMON)


@frozen
class ChosenPhases:
    """The phases that the options of a command line leave."""

    components: tuple[Component, ...] = SEQUENCE
    prerequisites: frozenset[str] = PREREQUISITES
    preflight: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether the join results in a node with all its components."""
        return self.components == SEQUENCE


def choose_phases(only: Sequence[str] = (), start: str = "", skip: Sequence[str] = ()) -> ChosenPhases:
    """Returns the phases selected by `--only`, `--from` and `--skip-phase`; all phases by default."""
    names = tuple(component.name for component in SEQUENCE)
    for name in (*only, *([start] if start else [])):
        if name not in names:
            raise _unknown_phase(f"{name!r} is not a phase that installs a component.", names)
    optional = tuple(phase.name for phase in JOIN_PHASES if phase.optional)
    for name in skip:
        if name not in optional:
            raise _unknown_phase(f"{name!r} is not a phase that can be skipped.", optional)
    if only and start:
        raise CommandUsageError("options-conflict", "--only and --from cannot be combined.", "Use one of them.")
    first = names.index(start) if start else 0
    chosen = [name for name in only or names[first:] if name not in skip]
    return ChosenPhases(
        tuple(component for component in SEQUENCE if component.name in chosen),
        frozenset() if only or start else PREREQUISITES.difference(skip),
        PREFLIGHT.name not in skip,
    )


def _unknown_phase(problem: str, names: Sequence[str]) -> CommandUsageError:
    return CommandUsageError("phase-unknown", problem, f"Use one of: {', '.join(names)}.")
