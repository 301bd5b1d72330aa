"""Tests of the first contact with a provider, which is interrupted before and after each of its steps."""

from __future__ import annotations

import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.bootstrap import phases
from aks_flex_node.agent.bootstrap.sources.config_url import FromConfigUrl
from aks_flex_node.agent.bootstrap.sources.first_contact import NOT_ENROLLED, fetch_with_key
from aks_flex_node.agent.config.refusals import ENROLMENT_REFUSALS, KeyRevokedError
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.context import ConfigSelection, ledger_paths
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import NODE_KEY, NODE_KEY_COPY, STATE_DIR
from aks_flex_node.agent.reconcile.ledger import Ledger
from aks_flex_node.api import config_urls
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_rp.auth.node_assertions import verify_proof
from tests.unit.agent.builders import config_of, empty_host, engine_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.host.actions import Action
    from tests.hosts.recorded import RecordedHost

BUNDLE = ConfigBundle("{}", "1", "aks-flex-rp:x")


class PowerLossError(Exception):
    pass


class Provider:
    """Binds its URL to the first key, as the resource provider does. Its response may be lost."""

    def __init__(self) -> None:
        self.bound, self.lost, self.revoked = "", 0, ""

    def fetch(self, prove: Callable[[str, float], str]) -> ConfigBundle:
        key = verify_proof(prove("url", time.time()), "url")
        if key == self.revoked:
            raise KeyRevokedError("config-url-taken", "The key was revoked.")
        if self.bound not in {"", key}:
            raise ConfigError("config-url-taken", "Another key has the URL.")
        self.bound = key
        if self.lost:
            self.lost -= 1
            raise PowerLossError
        return BUNDLE


def interrupted(host: RecordedHost, at: int, *, after: bool) -> RecordedHost:
    """Makes the machine stop before or after its n-th action."""
    numbers, apply = count(), host.apply

    def stop(action: Action) -> None:
        is_last = next(numbers) == at
        if not is_last or after:
            apply(action)
        if is_last:
            raise PowerLossError

    host.apply = stop  # type: ignore[method-assign]
    return host


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_machine_comes_back_with_the_same_key_after_each_step(at: int, after: bool) -> None:
    host, provider = empty_host(), Provider()
    apply = host.apply
    interrupted(host, at, after=after)
    try:
        fetch_with_key(host, STATE_DIR, provider.fetch)
        NodeKeyStore(host).bind(BUNDLE.key_audience)
    except PowerLossError:
        host.apply = apply  # type: ignore[method-assign]
    host.apply = apply  # type: ignore[method-assign]

    assert fetch_with_key(host, STATE_DIR, provider.fetch).text == BUNDLE.text

    NodeKeyStore(host).bind(BUNDLE.key_audience)
    key = NodeKeyStore(host).read()
    assert key is not None
    assert (key.thumbprint, key.audience) == (provider.bound, BUNDLE.key_audience)
    assert host.read(NODE_KEY) == host.read(NODE_KEY_COPY)
    assert host.mode_of(NODE_KEY) == 0o600


def test_machine_comes_back_with_the_same_key_if_the_response_is_lost() -> None:
    host, provider = empty_host(), Provider()
    provider.lost = 1
    with pytest.raises(PowerLossError):
        fetch_with_key(host, STATE_DIR, provider.fetch)
    assert fetch_with_key(host, STATE_DIR, provider.fetch).text == BUNDLE.text


def test_machine_that_is_refused_stays_as_it_was() -> None:
    host, provider = empty_host(), Provider()
    provider.bound = "another"
    with pytest.raises(ConfigError):
        fetch_with_key(host, STATE_DIR, provider.fetch)
    assert host.stat(STATE_DIR) is None


def test_key_of_a_machine_that_may_be_bound_is_kept() -> None:
    def fails(_: Callable[[str, float], str]) -> ConfigBundle:
        raise ConfigError("config-url-unreachable", "No response.", retryable=True)

    host = empty_host()
    with pytest.raises(ConfigError):
        fetch_with_key(host, STATE_DIR, fails)
    assert NodeKeyStore(host).read() is not None


def refused_with(error: ConfigError) -> RecordedHost:
    """Returns a machine whose first request to an enrolment got this error."""

    def fails(prove: Callable[[str, float], str]) -> ConfigBundle:
        prove("url", time.time())
        raise error

    host = empty_host()
    with pytest.raises(ConfigError):
        fetch_with_key(host, STATE_DIR, fails, NOT_ENROLLED)
    return host


@pytest.mark.parametrize(
    "name",
    ["config-url-rejected", "config-url-expired", "config-url-taken", "node-on-another-machine"],
)
def test_key_that_may_hold_a_use_of_an_enrolment_is_kept(name: str) -> None:
    host = refused_with(ConfigError(name, "The provider refused it, and may have given a use to it."))
    assert NodeKeyStore(host).read() is not None


@pytest.mark.parametrize("code", ENROLMENT_REFUSALS)
def test_machine_that_an_enrolment_refuses_stays_as_it_was(code: str) -> None:
    assert refused_with(ENROLMENT_REFUSALS[code]("no")).stat(STATE_DIR) is None


def test_revoked_key_is_replaced_by_a_new_one() -> None:
    host, provider = empty_host(), Provider()
    fetch_with_key(host, STATE_DIR, provider.fetch)
    old = provider.revoked = provider.bound
    provider.bound = ""
    assert fetch_with_key(host, STATE_DIR, provider.fetch).text == BUNDLE.text
    assert provider.bound not in {"", old}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(6))
def test_successor_of_a_revoked_key_is_the_same_after_a_stop_at_each_step(at: int, after: bool) -> None:
    host, provider = empty_host(), Provider()
    fetch_with_key(host, STATE_DIR, provider.fetch)
    provider.revoked, provider.bound, provider.lost = provider.bound, "", at % 2
    apply = host.apply
    interrupted(host, at, after=after)
    with suppress(PowerLossError):
        NodeKeyStore(host).bind(BUNDLE.key_audience, fetch_with_key(host, STATE_DIR, provider.fetch).key)
    host.apply, provider.lost = apply, 0  # type: ignore[method-assign]
    bundle = fetch_with_key(host, STATE_DIR, provider.fetch)
    NodeKeyStore(host).bind(bundle.key_audience, bundle.key)
    key = NodeKeyStore(host).read()
    assert key is not None
    assert (key.thumbprint, key.next, key.previous) == (provider.bound, None, None)


def test_key_of_a_node_survives_the_url_of_another_node() -> None:
    """The key was revoked for the other node only. It must not be lost before the URL is refused."""
    host, provider = empty_host(), Provider()
    store = NodeKeyStore(host)
    fetch_with_key(host, STATE_DIR, provider.fetch)
    store.bind("aks-flex-rp:own")
    own = store.read()
    assert own is not None
    provider.revoked, provider.bound = own.thumbprint, ""
    bundle = fetch_with_key(host, STATE_DIR, provider.fetch)
    pending = store.read()
    assert pending is not None
    assert (pending.thumbprint, pending.audience, bundle.key) == (own.thumbprint, own.audience, provider.bound)

    url = config_urls.parse("https://rp.example/configs/secret")
    source = FromConfigUrl(host, ConfigSelection(url=url), url, bundle)
    with pytest.raises(MachineError), source.explain_failure(phases.IDENTITY, config_of()):
        raise MachineError("config-node-mismatch", "This machine is another node.", "Use the URL of this node.")

    assert store.read() == own


def test_directory_of_the_first_contact_belongs_to_the_agent() -> None:
    """The ledger records it, so that unbootstrap removes it. The machine is no node by that alone."""
    host = empty_host()
    fetch_with_key(host, STATE_DIR, Provider().fetch)
    ledger = Ledger(host, ledger_paths(config_of()))
    assert not ledger.exists
    assert ledger.owned("agent").paths[STATE_DIR]["original"] is None
    engine = engine_on(host)
    assert engine.ledger.owned("agent").paths[STATE_DIR]["original"] is None
