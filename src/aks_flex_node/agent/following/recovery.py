"""A node that has lost its certificate, its kubeconfig or its Node comes back by itself, with a token it asks for.

Nothing is given up before there is something better: the new token is here before the kubelet is told to use it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import credentials
from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.fetching.bundles import fetch
from aks_flex_node.agent.following import nexts
from aks_flex_node.agent.following.endpoints import ways_out
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.api import config_urls
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import Remove, RestartUnit, WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.cluster.proof import Proof
    from aks_flex_node.agent.engine.engine import Engine
    from aks_flex_node.agent.following.provider import Provider
    from aks_flex_node.agent.following.sights import Sight

KIND = "recover"
KUBELET = "kubelet.service"


@dataclass(frozen=True)
class Recovery:
    engine: Engine
    provider: Provider
    proof: Proof
    look: Callable[[], Sight]

    def run(self) -> Outcome:
        sight = self.look()
        if not sight.lost:
            return Outcome(KIND, Result.DONE.value, message="The node has all it needs.")
        try:
            return self._recover(sight)
        except Unanswered as without:
            verdict = without.verdict
            message = f"The provider gave no new token: {verdict.message}"
            return Outcome(KIND, Result.FAILED.value, verdict.standing.value, message, again=True)
        except FlexError as error:
            return Outcome(KIND, Result.FAILED.value, error.name, error.message, error.hint, again=True)

    def _recover(self, sight: Sight) -> Outcome:
        if not sight.missing:
            self._take_new_token(useless=sight.expired or sight.refused)
        self.engine.host.do(RestartUnit(KUBELET))
        self.proof.registered()
        self.proof.ready(lambda _: None)
        self.engine.settle()
        message = f"The node is back: {sight.lost}."
        self.engine.events.say("recovered", message)
        return Outcome(KIND, Result.DONE.value, "Recovered", message)

    def _take_new_token(self, *, useless: bool) -> None:
        """A kubelet whose certificate is not valid asks for a new one by itself, when it has a token that is."""
        host = self.engine.host
        known = (host.read(CURRENT) or b"").decode()
        url = config_urls.parse(str(self.provider.act("regenerateToken").get("configUrl") or ""))
        delivered = nexts.config_of(fetch(url, ways_out(self.engine.config)).text)
        token = (delivered.get("azure") or {}).get("bootstrapToken")
        if not isinstance(token, dict):
            raise FlexError(
                "token-not-delivered",
                "The provider's new bundle has no bootstrap token in it.",
                "Is this node described to join in another way? `aks-flex-rp node show` tells.",
                again=True,
            )
        document = json.loads(known)
        document["config"].setdefault("azure", {})["bootstrapToken"] = token
        text = json.dumps(document, indent=1) + "\n"
        self.engine.config = load_text(text, CURRENT, {}, {}).config
        host.do(WriteFile(CURRENT, text.encode(), 0o600, secret=True))
        self.engine.apply(credentials.COMPONENT)
        if useless:
            # A kubelet puts a new one beside it, and turns a link; whatever else stands there is in its way.
            folder = self.engine.config.paths.kubernetes.kubelet_dir
            host.do(Remove(f"{folder}/pki/kubelet-client-current.pem"))
