"""News from the provider is checked whole, gets its secrets, and is put down as the next configuration.

New credentials are tried before the old ones are given up: until they work, the old ones stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.components.agent import CURRENT, NEXT
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.following import nexts
from aks_flex_node.agent.following.provider import Unanswered
from aks_flex_node.agent.following.tokens import SignInError
from aks_flex_node.agent.following.verdicts import Standing, Verdict
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.following.provider import Provider
    from aks_flex_node.host.host import Host


@dataclass
class Accepting:
    """Used by the thread that polls, and by no other."""

    host: Host
    provider: Provider
    report: Callable[[Verdict, str], None]  # how it stands, and what is wrong with new credentials
    seen: str = ""  # the newest version that the provider named
    _invalid: str = ""  # what is wrong with that version
    _refused: str = ""  # why new credentials are not used yet
    _secret: str = field(default="", repr=False)  # the one that could not be proven yet
    _compared: bool = False  # with what the provider has

    @property
    def waits(self) -> bool:
        """Whether there is something to try again soon, so that answers should not be held."""
        return bool(self._secret)

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
        self.seen, self._invalid = news.version, ""
        text = nexts.compose(news.config, news.version, self._in_effect(), secret)
        try:
            load_text(text, self.provider.endpoint.origin, {}, {})
        except ConfigError as error:
            self._invalid = f"Configuration {news.version} is not valid and was not touched: {error.message}"
            return Verdict(Standing.FOLLOWING)
        self.host.do(WriteFile(NEXT, text.encode(), 0o600, secret=True))
        return news

    def _secret_for(self, news: Verdict) -> str:
        """The service principal's secret, if it is a new one and works."""
        secret = self._told_secret(news.config)
        self._secret, self._refused, self._compared = "", "", True
        return secret if secret and self._proves(news.config, news.version, secret) else ""

    def _told_secret(self, config: Mapping[str, Any]) -> str:
        """What the provider has for this node, if it is not what the node has."""
        if not nexts.has_principal(config):
            return ""
        told = self.provider.act("listCredentials").get("servicePrincipal") or {}
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
        renewed = nexts.compose(config, version, self._in_effect(), secret)
        self.host.do(WriteFile(NEXT, renewed.encode(), 0o600, secret=True))
        return replace(verdict, changed=True, version=version)

    def _in_effect(self) -> dict[str, Any]:
        return nexts.config_of(self._text(CURRENT))

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")
