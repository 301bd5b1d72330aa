"""What becomes of the agent after a join: it stays as a service, in this process, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent import renewing
from aks_flex_node.agent.cli import door, screen
from aks_flex_node.agent.cli.door import Stays
from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.components.sequence import own
from aks_flex_node.agent.config import loader
from aks_flex_node.agent.engine.workshop import StoreWorkshop
from aks_flex_node.agent.fetching import keeping
from aks_flex_node.agent.identities.who import kind
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from aks_flex_node.agent.config.loader import Loaded
    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.agent.engine.engine import Engine


def stay(engine: Engine, loaded: Loaded, stays: Stays | None, *, follows: bool) -> None:
    """Leave the agent that stays what it goes by, and bring it here, or take it away."""
    if follows and not is_followable(kept()):
        # With Arc, a service principal is its operator's, and was perhaps given for this one run.
        keeping.keep_file(
            engine.host, loaded.text("azure.servicePrincipal." if kind(loaded.config) == "arc" else "-")
        )
    if (follows or door.is_followed()) and (unexpected := passing(loaded.config, kept(), stays)):
        screen.warn(unexpected)
    if stays is Stays.AS_A_SERVICE:
        told = install_service(engine)
        if told.result != Result.DONE.value:
            screen.warn(told.message)


def kept() -> NodeConfig | None:
    """What the agent that stays goes by; None when there is nothing that can be read."""
    try:
        return loader.load(Path(CURRENT), {}, {}).config
    except ConfigError:
        return None


def is_followable(config: NodeConfig | None) -> bool:
    """Whether an agent can stay with what is kept: a join before this one may have kept something else."""
    return config is not None and config.continuous_monitoring


def passing(config: NodeConfig, known: NodeConfig | None, stays: Stays | None) -> str:
    """What whoever gave this command may not expect of a node that is followed."""
    if stays is Stays.AS_A_SERVICE and not config.continuous_monitoring:
        return "The configuration does not ask for an agent that stays: this node is no longer followed."
    if known and keeping.applied_text(config) == keeping.applied_text(known):
        return ""
    return (
        f"This run went by settings that are not in {CURRENT} (--config, --set or the environment). The agent that "
        "stays does not know them, and brings back what its resource says."
    )


def install_service(engine: Engine) -> Outcome:
    """Bring the agent's own service and version to this machine; whoever calls must not be part of that service."""
    workshop = engine.workshop = StoreWorkshop(engine.config)
    try:
        if renewing.due(engine.host, engine.config):
            return renewing.renew(engine)
        for component in own(engine.config):
            engine.apply(component)
        return Outcome("update", Result.DONE.value)
    finally:
        workshop.close()


def check_following(config: NodeConfig, node: str) -> None:
    """Refuse before anything is changed what could not be followed afterwards."""
    from aks_flex_node.agent.following.endpoints import endpoint
    from aks_flex_node.agent.identities.clouds import check_cloud
    from aks_flex_node.agent.identities.who import require_identity

    endpoint(config, node)
    check_cloud(config)
    require_identity(config)
