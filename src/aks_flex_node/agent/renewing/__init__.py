"""The agent's own version, changed by the configuration: put in place, checked, tried, and gone back from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components.sequence import SEQUENCE, kept
from aks_flex_node.agent.renewing.renewals import Renewal
from aks_flex_node.agent.renewing.trials import due, failure, prove

if TYPE_CHECKING:
    from aks_flex_node.agent.engine.component import Component
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.works import Outcome

__all__ = ["compared", "due", "failure", "prove", "renew"]


def compared(engine: Engine) -> tuple[Component, ...]:
    """What a machine is compared by. A version of the agent that is not there yet, or did not work, is no drift."""
    tried = due(engine.host, engine.config) or bool(failure(engine.host, engine.config))
    return SEQUENCE if tried else kept(engine.ledger, engine.config)


def renew(engine: Engine) -> Outcome:
    """Bring the agent to the version that the configuration names. A process other than the agent's own does this."""
    return Renewal(engine).run()
