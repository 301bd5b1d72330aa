"""The roles of the machine's identity on its cluster: given, and waited for until they are in effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.azure import roles
from aks_flex_node.azure.roles import NODE_ROLES
from aks_flex_node.errors import ConfigError, FlexError

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.arc.records import Records
    from aks_flex_node.azure.patience import Patience
    from aks_flex_node.azure.roles import Role, RolesArm


class Roles:
    def __init__(self, records: Records, note: Callable[[str], None], patience: Patience) -> None:
        self._records, self._note, self._patience = records, note, patience

    def assign(self, arm: RolesArm, cluster: str, principal: str) -> None:
        for role in NODE_ROLES:
            made, ours = roles.assignment_id(cluster, role, principal), self._records.read().assignments
            if made not in ours:
                self._records.change(assignments=(*ours, made))
            self._note(f"giving the machine the role {role.name}")
            if not roles.assign(arm, cluster, role, principal, self._patience, self._note):
                self._records.change(assignments=tuple(each for each in ours if each != made))

    def wait(self, arm: RolesArm, cluster: str) -> None:
        """Until the machine itself may do what the roles allow: Azure takes minutes for that, at times."""
        while True:
            lacking, error = self._lacking(arm, cluster)
            if not lacking:
                return
            names = ", ".join(role.name for role in lacking)
            if not self._patience.pause():
                raise late(cluster, names, self._patience.seconds, error) from error
            cause = f"; it cannot be asked as the machine yet: {error.message}" if error else ""
            self._note(f"waiting until Azure puts into effect: {names} ({self._patience.waited:.0f} s){cause}")

    def look(self, arm: RolesArm, cluster: str, principal: str) -> bool:
        """Whether it has all of them; what is missing is for somebody else to give."""
        lacking, error = self._lacking(arm, cluster)
        if error:
            self._note(f"whether the machine has its roles on {cluster} cannot be seen yet: {error.message}")
        elif lacking:
            self._note(f"the machine's identity lacks roles on {cluster}; somebody who may give them runs:")
            for role in lacking:
                self._note(f"  {roles.command(cluster, role, principal)}")
        return not lacking

    def _lacking(self, arm: RolesArm, cluster: str) -> tuple[list[Role], FlexError | None]:
        """An identity that was just made is a stranger to Entra for a while, so no error is the last word."""
        try:
            return roles.missing(arm, cluster, NODE_ROLES), None
        except ConfigError:
            raise
        except FlexError as error:
            return list(NODE_ROLES), error


def late(cluster: str, names: str, seconds: float, error: FlexError | None) -> FlexError:
    cause = f" The last answer was: {error.message}" if error else ""
    return FlexError(
        "arc-roles-late",
        f"After {seconds:.0f} s the machine's identity still may not do on {cluster} what these roles allow: "
        f"{names}.{cause}",
        "Run the same command again: it goes on waiting. `az role assignment list --scope` with that id shows "
        "whether the roles are there; azure.arc.waitSeconds says how long to wait.",
        again=True,
    )
