"""Tests of received configurations: validated, completed with secrets and stored, or rejected with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from aks_flex_node.agent.config.sources import complete, machine_paths, nest
from aks_flex_node.agent.daemon.config_receiver import ConfigReceiver
from aks_flex_node.agent.paths import CURRENT_CONFIG, NEXT_CONFIG, STAGING_CONFIG
from aks_flex_node.agent.provider.poll_result import LEAVING_STATES, NextConfig, PollResult, ProviderState
from aks_flex_node.agent.provider.provider_client import ProviderRequestError
from aks_flex_node.errors import MachineError
from tests.unit.agent.builders import JOIN
from tests.unit.agent.daemon.fakes import (
    CLIENT,
    CONNECTED,
    NEW,
    OLD,
    OTHER,
    FakeHost,
    FakeProvider,
    bundle,
    kept,
    news,
    put,
    settings,
)


@dataclass
class Scene:
    host: FakeHost = field(default_factory=FakeHost)
    provider: FakeProvider = field(default_factory=lambda: FakeProvider().has(OLD))
    told: list[tuple[PollResult, str]] = field(default_factory=list)
    way: PollResult = CONNECTED

    def __post_init__(self) -> None:
        self.accepting = ConfigReceiver(
            self.host, self.provider.real, lambda *said: self.told.append(said), lambda _: self.way, "1"
        )

    def standing(self) -> ProviderState:
        return self.told[-1][0].state

    @property
    def refused(self) -> str:
        return self.told[-1][1]

    @property
    def stored(self) -> dict[str, Any]:
        """The pending configuration with its version."""
        waiting = kept(self.host)
        assert waiting
        return waiting

    def secret(self) -> str:
        """Returns the secret of the pending configuration."""
        return str(self.stored["config"]["azure"]["servicePrincipal"].get("clientSecret", ""))


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_new_config_is_stored_mode_0600_with_the_current_secret(scene: Scene) -> None:
    verdict = scene.accepting.handle(news("2", settings(node=settings()["node"] | {"maxPods": 7})))
    assert (scene.stored["configVersion"], scene.stored["config"]["node"]["maxPods"]) == ("2", 7)
    assert (scene.secret(), scene.accepting.newest_version, verdict.changed) == (OLD, "2", True)
    assert scene.host.mode_of(NEXT_CONFIG) == 0o600


def kubelet(options: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with options of the kubelet."""
    node = settings()["node"]
    return settings(node=node | {"kubelet": node["kubelet"] | {"extraConfig": options}})


def azure(**more: Any) -> dict[str, Any]:
    return settings(azure=settings()["azure"] | more)


LOCAL_ONLY = "can only be set on the machine itself"
NAMES_A_FILE = "it names a file that the agent reads or writes"
ROOT_BY_KUBELET: list[dict[str, Any]] = [  # static pods, commands in pods for anonymous users, files of the machine
    {"staticPodURL": "https://evil.example/pod.yaml"},
    {"staticPodPath": "/var/lib/kubelet/pods"},
    {"authentication": {"anonymous": {"enabled": True}}},
    {"Authorization": {"mode": "AlwaysAllow"}},
    {"volumePluginDir": "/var/lib/kubelet/pods"},
    {"imageServiceEndpoint": "unix:///var/lib/kubelet/pods/x/image.sock"},
    {"containerRuntimeEndpoint": "unix:///var/lib/kubelet/pods/x/runtime.sock"},
    {"podLogsDir": "/etc/cron.d"},
    {"seccompDefault": False},
    {"enableSystemLogQuery": True},
    {"allowedUnsafeSysctls": ["kernel.*"]},
    {"resolvConf": "/etc/shadow"},
]
ATTACKS = [
    # Programs with digests of its own, or files that a pod can write.
    (settings(runc={"url": "https://evil.example/runc", "sha256": {"runc": "0" * 64}}), LOCAL_ONLY),
    (settings(artifacts={"bundle": "/var/lib/kubelet/pods/x/evil.tar"}), LOCAL_ONLY),
    (settings(artifacts={"checksumsFile": "/var/lib/kubelet/pods/x/evil.txt"}), LOCAL_ONLY),
    (settings(paths={"dataDir": "/var/lib/kubelet/pods/x"}), LOCAL_ONLY),
    (azure(arc={"package": {"repository": "https://evil.example"}}), LOCAL_ONLY),
    (settings(artifacts={"baseURL": "http://mirror.example"}), "is not encrypted"),
    # Files that root writes, or sends as a credential.
    (settings(agent={"logFile": "/etc/cron.d/job"}), NAMES_A_FILE),
    (settings(agent={"metricsFile": "/etc/cron.d/job"}), NAMES_A_FILE),
    (settings(node=settings()["node"] | {"kubelet": {"caCertFile": "/etc/shadow"}}), NAMES_A_FILE),
    (azure(servicePrincipal={"clientId": CLIENT, "clientSecretFile": "/etc/shadow"}), NAMES_A_FILE),
    (azure(bootstrapToken={"tokenFile": "/etc/shadow"}), NAMES_A_FILE),
    (
        azure(servicePrincipal={"clientId": CLIENT, "clientCertificateFile": "/etc/ssl/private/other.pem"}),
        "can only be /etc/aks-flex-node/client.pem",
    ),
    # An authority of its own, which then gets the secret of the client.
    *(
        (azure(**{name: value}), "because it sends its credentials there")
        for name, value in (
            ("authorityHost", "https://evil.example"),
            ("resourceManager", "https://evil.example"),
            ("cloud", "AzureChinaCloud"),
        )
    ),
    *(
        (kubelet(option), f"node.kubelet.extraConfig.{next(iter(option))}: {LOCAL_ONLY}")
        for option in ROOT_BY_KUBELET
    ),
]


@pytest.mark.parametrize(("attack", "why"), ATTACKS, ids=range(len(ATTACKS)))
def test_compromised_provider_cannot_take_over_the_machine(scene: Scene, attack: dict[str, Any], why: str) -> None:
    scene.accepting.handle(news("2", attack))
    assert kept(scene.host) is None
    assert scene.standing() is ProviderState.BAD_CONFIGURATION
    assert why in scene.told[-1][0].message


def test_other_and_own_options_of_the_kubelet_are_accepted(scene: Scene) -> None:
    own = {"registryPullQPS": 3, "podPidsLimit": 99}
    put(scene.host, CURRENT_CONFIG, bundle("1", kubelet(own)))
    scene.accepting.handle(news("2", kubelet({**own, "registryPullQPS": 4})))
    assert kept(scene.host)
    scene.accepting.handle(news("3", kubelet({**own, "podPidsLimit": 100})))
    assert scene.standing() is ProviderState.BAD_CONFIGURATION


def test_private_cloud_of_the_join_is_kept_and_its_ca_can_be_replaced(scene: Scene) -> None:
    private = {"authorityHost": "https://login.example", "resourceManager": "https://arm.example"}
    put(scene.host, CURRENT_CONFIG, bundle("1", settings(azure=settings(secret=OLD)["azure"] | private)))
    scene.accepting.handle(news("2", azure(**private, caCertData=JOIN["node.kubelet.caCertData"])))
    assert kept(scene.host)


def test_local_settings_of_the_current_config_are_not_the_sources(scene: Scene) -> None:
    """The configuration of an AKS pool is the current one with a few changes."""
    own = settings(artifacts={"bundle": "/media/usb/bundle.tar"})
    put(scene.host, CURRENT_CONFIG, bundle("1", own))
    scene.accepting.handle(news("2", own))
    assert kept(scene.host)


OF_THE_MACHINE: dict[str, dict[str, Any]] = {
    "npd": {"enabled": False, "sha256": {"npd.tar.gz": "1" * 64}},
    "proxy": {"https": "http://proxy.example:3128"},
    "provider": {"waitSeconds": 5},
}


@pytest.mark.parametrize(
    "sent", [{}, {"npd": None, "proxy": {"https": None}}, {"proxy": {"https": ""}}, {"npd": {"version": "1.34.0"}}]
)
def test_settings_of_the_machine_stay_in_a_new_config(scene: Scene, sent: dict[str, Any]) -> None:
    put(scene.host, CURRENT_CONFIG, bundle("1", settings(CLIENT, OLD, **OF_THE_MACHINE)))
    scene.accepting.handle(news("2", settings(**sent)))
    found = scene.stored["config"]
    assert found["npd"] == OF_THE_MACHINE["npd"] | (sent.get("npd") or {})
    assert {name: found[name] for name in ("proxy", "provider")} == {
        name: OF_THE_MACHINE[name] for name in ("proxy", "provider")
    }


@pytest.mark.parametrize("sent", [{"npd": {"sha256": {"other": "2" * 64}}}, {"proxy": {"https": "http://evil:1"}}])
def test_settings_of_the_machine_cannot_be_replaced_by_a_provider(scene: Scene, sent: dict[str, Any]) -> None:
    put(scene.host, CURRENT_CONFIG, bundle("1", settings(CLIENT, OLD, **OF_THE_MACHINE)))
    scene.accepting.handle(news("2", settings(**sent)))
    assert kept(scene.host) is None
    assert LOCAL_ONLY in scene.told[-1][0].message


@pytest.mark.parametrize("path", sorted(machine_paths()))
@pytest.mark.parametrize("sent", [None, ""])
def test_setting_of_the_machine_cannot_be_emptied_by_a_provider(path: str, sent: str | None) -> None:
    assert complete(nest({path: sent}), nest({path: "own"})) == nest({path: "own"})


def test_unchanged_poll_writes_nothing_and_compares_credentials_once(scene: Scene) -> None:
    for _ in range(3):
        assert scene.accepting.handle(CONNECTED) == CONNECTED
    assert kept(scene.host) is None
    assert [action for action, _ in scene.provider.acts] == ["listCredentials"]


def test_working_new_secret_is_stored_with_the_new_config(scene: Scene) -> None:
    scene.provider.has(NEW).tokens.good.add(NEW)
    scene.accepting.handle(news("2", settings()))
    assert (scene.secret(), scene.refused, scene.provider.tokens.tried) == (NEW, "", [NEW])


def test_pending_secret_is_adopted_once_it_works(scene: Scene) -> None:
    scene.provider.has(NEW)
    scene.accepting.handle(news("2", settings()))
    assert (scene.secret(), scene.standing()) == (OLD, ProviderState.CONNECTED)
    assert "Entra does not know that secret." in scene.refused
    assert scene.accepting.has_pending_credentials
    assert not scene.accepting.handle(CONNECTED).changed
    scene.provider.tokens.good.add(NEW)
    verdict = scene.accepting.handle(CONNECTED)
    assert (verdict.changed, verdict.version, scene.secret(), scene.refused) == (True, "2", NEW, "")
    assert not scene.accepting.has_pending_credentials
    assert not scene.accepting.handle(CONNECTED).changed


def test_changed_secret_is_found_at_the_first_poll_result(scene: Scene) -> None:
    scene.provider.has(NEW).tokens.good.add(NEW)
    verdict = scene.accepting.handle(CONNECTED)
    assert (verdict.changed, verdict.version, scene.secret()) == (True, "1", NEW)


@pytest.mark.parametrize("standing", [ProviderState.FORBIDDEN, ProviderState.FAILING, ProviderState.THROTTLED])
def test_new_config_is_retried_when_its_credentials_request_fails(scene: Scene, standing: ProviderState) -> None:
    scene.provider.answers["listCredentials"] = ProviderRequestError(PollResult(standing, "No.", retry_after=7.0))
    verdict = scene.accepting.handle(news("2", settings()))
    assert (verdict.state, verdict.retry_after, scene.standing()) == (standing, 7.0, standing)
    assert (kept(scene.host), scene.accepting.newest_version) == (None, "1")


@pytest.mark.parametrize("standing", sorted(LEAVING_STATES, key=str))
def test_credentials_request_never_makes_the_node_leave(scene: Scene, standing: ProviderState) -> None:
    """Attack: a 404 for listCredentials, without the record of a deletion, counts as the deletion of the node."""
    scene.provider.answers["listCredentials"] = ProviderRequestError(PollResult(standing, "No.", retry_after=7.0))
    result = scene.accepting.handle(news("2", settings()))
    assert (result.state, result.message, result.retry_after) == (ProviderState.FAILING, "No.", 7.0)
    assert scene.standing() is ProviderState.FAILING


def test_failed_credentials_comparison_is_retried_at_the_next_poll(scene: Scene) -> None:
    scene.provider.answers["listCredentials"] = ProviderRequestError(PollResult(ProviderState.FAILING))
    assert scene.accepting.handle(CONNECTED) == CONNECTED
    scene.provider.has(NEW).tokens.good.add(NEW)
    assert scene.accepting.handle(CONNECTED).changed


WRONG: list[dict[str, Any]] = [
    settings(node={"maxPods": 0}),
    settings(node="none"),
    {**settings(), "azure": "none"},
    {**settings(), "azure": ["none"]},
    {**settings(), "azure": {}},
]


@pytest.mark.parametrize("config", WRONG, ids=str)
def test_invalid_config_is_reported_and_polling_continues(scene: Scene, config: dict[str, Any]) -> None:
    receiver = scene.accepting
    assert receiver.handle(news("2", config)) == CONNECTED
    assert (kept(scene.host), receiver.newest_version, receiver.has_pending_credentials) == (None, "2", False)
    assert scene.standing() is ProviderState.BAD_CONFIGURATION
    receiver.handle(CONNECTED)
    assert scene.standing() is ProviderState.BAD_CONFIGURATION
    receiver.handle(news("3", settings()))
    assert scene.standing() is ProviderState.CONNECTED


def test_working_secret_is_adopted_even_with_an_invalid_config(scene: Scene) -> None:
    scene.provider.has(NEW).tokens.good.add(NEW)
    scene.accepting.handle(news("2", settings(node={"maxPods": 0})))
    assert (scene.stored["configVersion"], scene.secret()) == ("1", NEW)
    assert scene.stored["config"]["node"] == settings()["node"]


def test_new_service_principal_is_deferred_until_its_secret_works(scene: Scene) -> None:
    """A node without working credentials could not get better ones."""
    scene.provider.has(NEW, OTHER)
    assert scene.accepting.handle(news("2", settings(OTHER))) == CONNECTED
    assert (kept(scene.host), scene.accepting.newest_version) == (None, "1")
    assert "do not work yet" in scene.refused
    scene.provider.tokens.good.add(NEW)
    assert scene.accepting.handle(news("2", settings(OTHER))).changed
    assert (scene.secret(), scene.refused) == (NEW, "")


def test_new_service_principal_without_a_secret_is_refused(scene: Scene) -> None:
    scene.provider.has("", OTHER)
    scene.accepting.handle(news("2", settings(OTHER)))
    assert scene.standing() is ProviderState.BAD_CONFIGURATION
    assert kept(scene.host) is None


def test_secret_of_another_principal_is_not_stored_for_the_current_one(scene: Scene) -> None:
    scene.provider.has(NEW, OTHER).tokens.good.add(NEW)
    scene.accepting.handle(news("2", settings(OTHER, node={"maxPods": 0})))
    assert kept(scene.host) is None


def test_config_that_disables_management_needs_no_identity(scene: Scene) -> None:
    azure = {"targetCluster": settings()["azure"]["targetCluster"]}
    assert scene.accepting.handle(news("2", settings(azure=azure, continuousMonitoring=False))).changed


@pytest.mark.parametrize("told", ["text", ["list"], {"clientSecret": None}, None], ids=str)
def test_malformed_credentials_are_ignored(scene: Scene, told: object) -> None:
    scene.provider.answers["listCredentials"] = {"servicePrincipal": told}
    assert scene.accepting.handle(news("2", settings())).changed
    assert scene.secret() == OLD


@pytest.mark.parametrize("then", [news("2", settings()), CONNECTED], ids=["space again", "withdrawn"])
def test_config_that_cannot_be_written_is_requested_again(scene: Scene, then: PollResult) -> None:
    receiver = scene.accepting
    scene.host.refuses = lambda _: True
    with pytest.raises(MachineError):
        receiver.handle(news("2", settings()))
    assert receiver.newest_version == "1"
    assert receiver.not_accepted == "Configuration 2 could not be stored: The disk is full."
    scene.host.refuses = None
    receiver.handle(then)
    assert (receiver.newest_version, receiver.not_accepted) == (then.version or "1", "")


def test_closed_config_receiver_writes_nothing(scene: Scene) -> None:
    put(scene.host, NEXT_CONFIG, bundle("3", settings(secret=OLD)))
    scene.accepting.close()
    scene.accepting.handle(replace(news("2", settings()), knows_next=True, next_config=NextConfig(5, settings())))
    assert scene.stored["configVersion"] == "3"
    assert kept(scene.host, STAGING_CONFIG) is None


def test_config_receiver_shows_no_secrets(scene: Scene) -> None:
    scene.provider.has(NEW)
    scene.accepting.handle(news("2", settings()))
    assert scene.accepting.has_pending_credentials
    shown = f"{scene.accepting!r} {scene.told!r} {[str(action) for action in scene.host.done]}"
    assert NEW not in shown
    assert OLD not in shown


def test_config_receiver_never_changes_the_current_config(scene: Scene) -> None:
    before = scene.host.read(CURRENT_CONFIG)
    scene.provider.has(NEW, CLIENT).tokens.good.add(NEW)
    for version, config in enumerate([settings(), settings(OTHER), *WRONG], 2):
        scene.accepting.handle(news(str(version), config))
    assert scene.host.read(CURRENT_CONFIG) == before


def elsewhere(version: str) -> PollResult:
    return news(version, settings(provider={"url": "https://elsewhere.example"}))


def test_unreachable_new_provider_url_is_refused_and_retried(scene: Scene) -> None:
    scene.way = PollResult(ProviderState.UNREACHABLE, "No answer.")

    paced = scene.accepting.handle(elsewhere("2"))

    assert paced.is_ok  # over the working endpoint, with the usual interval
    assert not paced.changed
    assert kept(scene.host) is None
    assert scene.standing() is ProviderState.BAD_CONFIGURATION
    assert "No answer." in scene.told[-1][0].message
    assert scene.accepting.newest_version == "1"

    scene.way = PollResult(ProviderState.CONNECTED)
    assert scene.accepting.handle(elsewhere("2")).changed
    assert scene.accepting.newest_version == "2"


def test_config_that_ends_the_management_needs_no_reachable_provider(scene: Scene) -> None:
    scene.way = PollResult(ProviderState.UNREACHABLE, "No answer.")
    assert scene.accepting.handle(news("2", settings(provider={}, continuousMonitoring=False))).changed
    assert scene.stored["configVersion"] == "2"
    assert scene.accepting.newest_version == "2"
