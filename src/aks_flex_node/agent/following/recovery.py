"""A node that has lost its certificate, its kubeconfig or its Node comes back by itself, with a token it asks for.

Nothing is given up before there is something better: the new token is here before the kubelet is told to use it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aks_flex_node.agent.components import credentials, kubelet
from aks_flex_node.agent.components.agent import CURRENT
from aks_flex_node.agent.config.derived import joined_file, kubelet_auth
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.fetching.bundles import fetch
from aks_flex_node.agent.following import nexts
from aks_flex_node.agent.following.introducing import introduce
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.identities.clouds import ways_out
from aks_flex_node.agent.identities.handing import KEPT
from aks_flex_node.agent.works import Outcome, Result
from aks_flex_node.api import config_urls
from aks_flex_node.errors import FlexError
from aks_flex_node.host.actions import MakeLink, Remove, RestartUnit, WriteFile

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
        if not sight.trouble:
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
        host, earlier = self.engine.host, None
        if not sight.missing:
            self._take_what_lets_in()
            earlier = None if sight.by_token else host.look(self._certificate)
            if not sight.by_token and (sight.expired or sight.refused or not sight.lost):
                # A kubelet puts a new one beside it, and turns a link; whatever else stands there is in its way.
                host.do(Remove(self._certificate))
        try:
            host.do(RestartUnit(KUBELET))
            self.proof.registered()
            self.proof.ready(lambda _: None)
        except FlexError:
            if earlier and earlier.target and not sight.lost:  # the one that is about to end is still good
                host.do(MakeLink(self._certificate, earlier.target))
                host.do(RestartUnit(KUBELET))
            raise
        self.engine.settle()
        message = f"The node is back: {sight.trouble}."
        self.engine.events.say("recovered", message)
        return Outcome(KIND, Result.DONE.value, "Recovered", message)

    @property
    def _certificate(self) -> str:
        return joined_file(self.engine.config)

    def _take_what_lets_in(self) -> None:
        """What a kubelet without a certificate shows: a new bootstrap token, or one of its Azure identity."""
        auth, folder = kubelet_auth(self.engine.config), self.engine.config.paths.kubernetes.kubelet_dir
        if auth == "bootstrapToken":
            return self._take_new_token()
        self.engine.host.do(Remove(f"{folder}/{KEPT}"))  # it may be that one which is not accepted any more
        for component in (credentials.COMPONENT, kubelet.COMPONENT):
            self.engine.apply(component)
        introduce(self.provider)
        return None

    def _take_new_token(self) -> None:
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
