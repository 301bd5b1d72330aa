"""Validates a configuration from the provider, adds the secrets, and stores it as the next configuration.

New credentials are tried first; the old ones stay in use until the new ones work.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import stored_config
from aks_flex_node.agent.config.loader import load_text
from aks_flex_node.agent.identity.azure_sign_in import require_identity
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.agent.provider.provider_tokens import SignInError
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import WriteFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.provider.provider_client import ProviderClient
    from aks_flex_node.host.host import Host


@dataclass
class ConfigReceiver:
    """Used by the thread that polls. Others may look at what was seen, and close it."""

    host: Host
    provider: ProviderClient
    report: Callable[[PollResult, str], None]  # how it stands, and what is wrong with new credentials
    probe_provider: Callable[[str], PollResult]  # how the provider answers a poll by another configuration
    newest_version: str = ""  # the newest version that the provider named
    _invalid_reason: str = ""  # what is wrong with that version
    _credentials_problem: str = ""  # why new credentials are not used yet
    _pending_secret: str = field(default="", repr=False)  # the one that could not be proven yet
    _credentials_compared: bool = False  # with what the provider has
    _closed: bool = False
    _write_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_pending_credentials(self) -> bool:
        """Whether there is something to try again soon, so that answers should not be held."""
        return bool(self._pending_secret)

    def close(self) -> None:
        """Another takes its place: what this one is still about to write would be older than what that one has."""
        with self._write_lock:
            self._closed = True

    def handle(self, result: PollResult) -> PollResult:
        """What an answer changes; the verdict by which the next question is paced."""
        if result.changed:
            result = self._accept(result)
        elif result.is_ok and (self._pending_secret or not self._credentials_compared):
            result = self._check_credentials(result)
        shown = result
        if result.is_ok and self._invalid_reason:  # to be asked for a better one as patiently as ever
            shown = PollResult(ProviderState.BAD_CONFIGURATION, self._invalid_reason)
        self.report(shown, self._credentials_problem)
        return result

    def _accept(self, news: PollResult) -> PollResult:
        try:
            secret = self._new_secret_for(news)
        except ProviderRequestError as without:
            return without.result
        text = stored_config.compose_document(news.config, news.version, self._current_config(), secret)
        try:
            _check(text, self.provider.endpoint.origin)
        except ConfigError as error:
            self._refuse(news, error.message, secret)
            return PollResult(ProviderState.CONNECTED)
        if stored_config.provider_settings_in(news.config) != stored_config.provider_settings_in(
            self._current_config()
        ) and not self._is_reachable_with(news, text):
            return PollResult(
                ProviderState.CONNECTED
            )  # by the way that works; it is looked at again with the next answer
        self._write(text)
        self.newest_version, self._invalid_reason = (
            news.version,
            "",
        )  # not before it is there: what was seen is not asked for again
        return news

    def _refuse(self, news: PollResult, why: str, secret: str) -> None:
        if self._pending_secret:
            return  # it may be good as soon as that one works, so it is looked at again
        self.newest_version = news.version
        self._invalid_reason = f"Configuration {news.version} is not valid and was not touched: {why}"
        current = self._current_config()
        if (
            secret
            and stored_config.client_id_in(current) == stored_config.client_id_in(news.config)
            and not self._text(NEXT_CONFIG)
        ):
            # The secret is good all the same, and the old one may end before there is a better configuration.
            self._write(
                stored_config.compose_document(
                    current, stored_config.parse_version(self._text(CURRENT_CONFIG)), current, secret
                )
            )

    def _is_reachable_with(self, news: PollResult, text: str) -> bool:
        """Another way to the provider is gone once before it becomes the only one."""
        answer = self.probe_provider(text)
        if not answer.is_ok:
            why = f"the provider does not answer the way it says: {answer.message or answer.state}"
            self._invalid_reason = f"Configuration {news.version} was not touched, because {why}"
        return answer.is_ok

    def _new_secret_for(self, news: PollResult) -> str:
        """The service principal's secret, if it is a new one and works."""
        secret = self._fetch_secret(news.config)
        self._pending_secret, self._credentials_problem, self._credentials_compared = "", "", True
        return secret if secret and self._check_secret(news.config, news.version, secret) else ""

    def _fetch_secret(self, config: Mapping[str, Any]) -> str:
        """What the provider has for this node, if it is not what the node has."""
        if not stored_config.client_id_in(config):
            return ""
        principal = self.provider.post_action("listCredentials").get("servicePrincipal")
        principal = principal if isinstance(principal, dict) else {}
        secret, client = str(principal.get("clientSecret") or ""), str(principal.get("clientId") or "")
        return "" if secret == stored_config.client_secret_in(self._current_config(), client) else secret

    def _check_secret(self, config: Mapping[str, Any], version: str, secret: str) -> bool:
        try:
            self.provider.tokens.check_credentials(
                stored_config.compose_document(config, version, self._current_config(), secret)
            )
        except SignInError as error:
            self._pending_secret = secret
            why = error.error.message
            self._credentials_problem = f"The new credentials do not work yet, and the old ones stay in use. {why}"
            return False
        self._pending_secret = self._credentials_problem = ""
        return True

    def _check_credentials(self, result: PollResult) -> PollResult:
        """They may have changed while nobody looked; and Entra takes a while to know a new secret everywhere."""
        text = self._text(NEXT_CONFIG) or self._text(CURRENT_CONFIG)
        config, version = stored_config.parse_config(text), stored_config.parse_version(text)
        try:
            secret = self._pending_secret or self._fetch_secret(config)
        except ProviderRequestError:
            return result  # it is looked at again with the next answer
        self._credentials_compared = True
        if not secret or not self._check_secret(config, version, secret):
            return result
        self._write(stored_config.compose_document(config, version, self._current_config(), secret))
        return replace(result, changed=True, version=version)

    def _write(self, text: str) -> None:
        with self._write_lock:
            if not self._closed:
                self.host.apply(WriteFile(NEXT_CONFIG, text.encode(), 0o600, secret=True))

    def _current_config(self) -> dict[str, Any]:
        return stored_config.parse_config(self._text(CURRENT_CONFIG))

    def _text(self, path: str) -> str:
        return (self.host.read(path) or b"").decode(errors="replace")


def _check(text: str, origin: str) -> None:
    """Raise when it is no configuration, or one with which this node could not ask for the next."""
    config = load_text(text, origin, {}, {}).config
    if config.continuous_monitoring or config.azure.service_principal:
        require_identity(config)
