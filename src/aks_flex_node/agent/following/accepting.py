"""News from the provider is checked whole, gets its secrets, and is put down as the next configuration.

New credentials are tried before the old ones are given up: until they work, the old ones stay.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.agent import CURRENT, NEXT
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.following import nexts
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.following.tokens import SignInError
from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.agent.identities.who import require_identity
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.following.provider import Provider
    from aks_flex_node.host.host import Host


@dataclass
class Accepting:
    """Used by the thread that polls. Others may look at what was seen, and close it."""

    host: Host
    provider: Provider
    report: Callable[[Verdict, str], None]  # how it stands, and what is wrong with new credentials
    try_way: Callable[[str], Verdict]  # how the provider answers a poll by another configuration
    seen: str = ""  # the newest version that the provider named
    _invalid: str = ""  # what is wrong with that version
    _refused: str = ""  # why new credentials are not used yet
    _secret: str = field(default="", repr=False)  # the one that could not be proven yet
    _compared: bool = False  # with what the provider has
    _closed: bool = False
    _writes: threading.Lock = field(default_factory=threading.Lock)

    @property
    def waits(self) -> bool:
        """Whether there is something to try again soon, so that answers should not be held."""
        return bool(self._secret)

    def close(self) -> None:
        """Another takes its place: what this one is still about to write would be older than what that one has."""
        with self._writes:
            self._closed = True

    def take(self, verdict: Verdict) -> Verdict:
        """What an answer changes; the verdict by which the next question is paced."""
        if verdict.changed:
            verdict = self._accept(verdict)
        elif verdict.good and (self._secret or not self._compared):
            verdict = self._look_at_credentials(verdict)
        shown = verdict
        if verdict.good and self._invalid:  # to be asked for a better one as patiently as ever
            shown = Verdict(Standing.BAD_CONFIGURATION, self._invalid)
        self.report(shown, self._refused)
        return verdict

    def _accept(self, news: Verdict) -> Verdict:
        try:
            secret = self._secret_for(news)
        except Unanswered as without:
            return without.verdict
        text = nexts.compose(news.config, news.version, self._in_effect(), secret)
        try:
            _check(text, self.provider.endpoint.origin)
        except ConfigError as error:
            self._refuse(news, error.message, secret)
            return Verdict(Standing.FOLLOWING)
        if nexts.way_of(news.config) != nexts.way_of(self._in_effect()) and not self._leads_there(news, text):
            return Verdict(Standing.FOLLOWING)  # by the way that works; it is looked at again with the next answer
        self._write(text)
        self.seen, self._invalid = news.version, ""  # not before it is there: what was seen is not asked for again
        return news

    def _refuse(self, news: Verdict, why: str, secret: str) -> None:
        if self._secret:
            return  # it may be good as soon as that one works, so it is looked at again
        self.seen = news.version
        self._invalid = f"Configuration {news.version} is not valid and was not touched: {why}"
        current = self._in_effect()
        if secret and nexts.client_of(current) == nexts.client_of(news.config) and not self._text(NEXT):
            # The secret is good all the same, and the old one may end before there is a better configuration.
            self._write(nexts.compose(current, nexts.version_of(self._text(CURRENT)), current, secret))

    def _leads_there(self, news: Verdict, text: str) -> bool:
        """Another way to the provider is gone once before it becomes the only one."""
        answer = self.try_way(text)
        if not answer.good:
            why = f"the provider does not answer the way it says: {answer.message or answer.standing.value}"
            self._invalid = f"Configuration {news.version} was not touched, because {why}"
        return answer.good

    def _secret_for(self, news: Verdict) -> str:
        """The service principal's secret, if it is a new one and works."""
        secret = self._told_secret(news.config)
        self._secret, self._refused, self._compared = "", "", True
        return secret if secret and self._proves(news.config, news.version, secret) else ""

    def _told_secret(self, config: Mapping[str, Any]) -> str:
        """What the provider has for this node, if it is not what the node has."""
        if not nexts.client_of(config):
            return ""
        told = self.provider.act("listCredentials").get("servicePrincipal")
        told = told if isinstance(told, dict) else {}
        secret, client = str(told.get("clientSecret") or ""), str(told.get("clientId") or "")
        return "" if secret == nexts.secret_of(self._in_effect(), client) else secret

    def _proves(self, config: Mapping[str, Any], version: str, secret: str) -> bool:
        try:
            self.provider.tokens.prove(nexts.compose(config, version, self._in_effect(), secret))
        except SignInError as error:
            self._secret = secret
            why = error.error.message
            self._refused = f"The new credentials do not work yet, and the old ones stay in use. {why}"
            return False
        self._secret = self._refused = ""
        return True

    def _look_at_credentials(self, verdict: Verdict) -> Verdict:
        """They may have changed while nobody looked; and Entra takes a while to know a new secret everywhere."""
        text = self._text(NEXT) or self._text(CURRENT)
        config, version = nexts.config_of(text), nexts.version_of(text)
        try:
            secret = self._secret or self._told_secret(config)
        except Unanswered:
            return verdict  # it is looked at again with the next answer
        self._compared = True
        if not secret or not self._proves(config, version, secret):
            return verdict
        self._write(nexts.compose(config, version, self._in_effect(), secret))
        return replace(verdict, changed=True, version=version)

    def _write(self, text: str) -> None:
        with self._writes:
            if not self._closed:
                self.host.do(WriteFile(NEXT, text.encode(), 0o600, secret=True))

    def _in_effect(self) -> dict[str, Any]:
        return nexts.config_of(self._text(CURRENT))

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")


def _check(text: str, origin: str) -> None:
    """Raise when it is no configuration, or one with which this node could not ask for the next."""
    config = load_text(text, origin, {}, {}).config
    if config.continuous_monitoring or config.azure.service_principal:
        require_identity(config)
