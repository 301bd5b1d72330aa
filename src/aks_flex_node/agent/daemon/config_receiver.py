"""Validates a configuration from the config source, adds the secrets, and stores it as the next configuration.

New credentials are verified first; the old ones are used until the new ones work.
"""

from __future__ import annotations

import threading
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent import staging_config, stored_config
from aks_flex_node.agent.config_sources.received_config import check_received
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.agent.provider.provider_tokens import SignInError
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.actions import WriteFile
from aks_flex_node.lean_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aks_flex_node.agent.config_sources.source import ConfigSource
    from aks_flex_node.host.host import Host


@dataclass
class ConfigReceiver:
    """Processes poll results in the poller's thread. Other threads may read `newest_version` and close it."""

    host: Host
    source: ConfigSource
    report: Callable[[PollResult, str], None]  # the result to report, and the problem of new credentials
    probe: Callable[[str], PollResult]  # polls with another configuration
    newest_version: str = ""  # from the source
    _invalid_reason: str = ""  # why that version is invalid
    _storage_problem: str = ""  # why a newer version is not stored, for example because the disk is full
    _credentials_problem: str = ""  # why new credentials are not in use yet
    _pending_secret: str = field(default="", repr=False)  # a new secret that does not work yet
    _credentials_compared: bool = False  # with the source's
    _closed: bool = False
    _write_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def has_pending_credentials(self) -> bool:
        """Whether new credentials must be verified again soon, so that polls must not wait."""
        return bool(self._pending_secret)

    @property
    def not_accepted(self) -> str:
        """Why the latest configuration is not even pending; empty if there is none such."""
        return self._invalid_reason or self._storage_problem

    def close(self) -> None:
        """Stops writing the next configuration, because a new receiver may already have stored a newer one."""
        with self._write_lock:
            self._closed = True

    def handle(self, result: PollResult) -> PollResult:
        """Processes a poll result and reports it; returns the result that determines the next delay."""
        answer = result
        if result.changed:
            result = self._accept(result)
        elif result.is_ok:
            self._storage_problem = ""
            if self._pending_secret or not self._credentials_compared:
                result = self._check_credentials(result)
        self._store_next(answer)
        reported = result
        if result.is_ok and self._invalid_reason:  # reported as invalid, but polled at the normal interval
            reported = PollResult(ProviderState.BAD_CONFIGURATION, self._invalid_reason)
        self.report(reported, self._credentials_problem)
        return result

    def _store_next(self, answer: PollResult) -> None:
        """Stores the next configuration of an answer. While its configuration is not stored yet, what is staged for
        that one is still needed.
        """
        if not answer.knows_next or (answer.changed and answer.version != self.newest_version):
            return
        with self._write_lock:
            if not self._closed:
                staging_config.store_config(self.host, answer.next_config)

    def _accept(self, news: PollResult) -> PollResult:
        try:
            secret = self._new_secret_for(news)
        except ProviderRequestError as error:
            result = error.result
            # Only a poll may say that the node was deleted or moved, on which it leaves.
            return replace(result, state=ProviderState.FAILING) if result.state in LEAVING_STATES else result
        text = stored_config.compose_document(news.config, news.version, self._current_config(), secret)
        try:
            check_received(self.host, text, self.source.description.address)
        except ConfigError as error:
            self._refuse(news, error.message, secret)
            return PollResult(ProviderState.CONNECTED)
        new = stored_config.parse_config(text)
        before, after = (stored_config.provider_settings_in(each) for each in (self._current_config(), new))
        is_standalone = new.get("continuousMonitoring") is False  # from now on, so it needs no provider
        if before != after and not is_standalone and not self._is_reachable_with(news, text):
            return PollResult(ProviderState.CONNECTED)  # through the current endpoint; checked again at the next poll
        self._store(news.version, text)
        # Only after it is stored, because a known version is not requested again.
        self.newest_version, self._invalid_reason = news.version, ""
        return news

    def _refuse(self, news: PollResult, why: str, secret: str) -> None:
        if self._pending_secret:
            return  # it may become valid with the pending secret, so it is checked again
        self.newest_version = news.version
        self._invalid_reason = f"Configuration {news.version} is invalid and was not applied: {why}"
        current = self._current_config()
        if (
            secret
            and stored_config.client_id_in(current) == stored_config.client_id_in(news.config)
            and not self._text(NEXT_CONFIG)
        ):
            # Store the new secret anyway, because the old one may expire before a valid configuration arrives.
            self._write(
                stored_config.compose_document(
                    current, stored_config.parse_version(self._text(CURRENT_CONFIG)), current, secret
                )
            )

    def _is_reachable_with(self, news: PollResult, text: str) -> bool:
        """Polls the provider once with the new connection settings before they replace the current ones."""
        answer = self.probe(text)
        if not answer.is_ok:
            why = f"the provider is unreachable with its settings: {answer.message or answer.state}"
            self._invalid_reason = f"Configuration {news.version} was not applied, because {why}"
        return answer.is_ok

    def _new_secret_for(self, news: PollResult) -> str:
        """Returns the service principal's secret if it is new and works, else an empty string."""
        secret = self._fetch_secret(news.config)
        self._pending_secret, self._credentials_problem, self._credentials_compared = "", "", True
        return secret if secret and self._check_secret(news.config, news.version, secret) else ""

    def _fetch_secret(self, config: Mapping[str, Any]) -> str:
        """Returns the source's secret for this node if it differs from the current one, else an empty string."""
        if not stored_config.client_id_in(config):
            return ""
        principal = self.source.fetch_principal()
        secret, client = str(principal.get("clientSecret") or ""), str(principal.get("clientId") or "")
        return "" if secret == stored_config.client_secret_in(self._current_config(), client) else secret

    def _check_secret(self, config: Mapping[str, Any], version: str, secret: str) -> bool:
        try:
            self.source.check_credentials(
                stored_config.compose_document(config, version, self._current_config(), secret)
            )
        except SignInError as error:
            self._pending_secret = secret
            why = error.error.message
            self._credentials_problem = f"The new credentials do not work yet. The old ones are still in use. {why}"
            return False
        self._pending_secret = self._credentials_problem = ""
        return True

    def _check_credentials(self, result: PollResult) -> PollResult:
        """Checks for new credentials after a restart, and retries pending ones, which Entra may not accept yet."""
        text = self._text(NEXT_CONFIG) or self._text(CURRENT_CONFIG)
        config, version = stored_config.parse_config(text), stored_config.parse_version(text)
        try:
            secret = self._pending_secret or self._fetch_secret(config)
        except ProviderRequestError:
            return result  # checked again at the next poll
        self._credentials_compared = True
        if not secret or not self._check_secret(config, version, secret):
            return result
        self._write(stored_config.compose_document(config, version, self._current_config(), secret))
        return replace(result, changed=True, version=version)

    def _store(self, version: str, text: str) -> None:
        try:
            self._write(text)
        except MachineError as error:
            self._storage_problem = f"Configuration {version} could not be stored: {error.message}"
            raise
        self._storage_problem = ""

    def _write(self, text: str) -> None:
        with self._write_lock:
            if not self._closed:
                self.host.apply(WriteFile(NEXT_CONFIG, text.encode(), 0o600, secret=True))

    def _current_config(self) -> dict[str, Any]:
        return stored_config.parse_config(self._text(CURRENT_CONFIG))

    def _text(self, path: str) -> str:
        return stored_config.stored_text(self.host, path)
