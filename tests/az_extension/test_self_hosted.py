"""Tests of a self-hosted service, called directly instead of through ARM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.pki import CertificateAuthority
from tests.az_extension.test_commands import ON, flex
from tests.az_extension.warm_az import warmed
from tests.azure_cli import Az
from tests.service.lab.cloud_harness import CLUSTER

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.az_extension.harness import Site
    from tests.az_extension.recording_proxy import Between
    from tests.az_extension.warm_az import WarmAz


@pytest.fixture(scope="module")
def stranger(site: Site, owner: Az, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmAz]:
    """Returns the az of a user without an Azure account, on a machine that does not trust the service."""
    other = CertificateAuthority(tmp_path_factory.mktemp("other"))
    other.ensure()
    unknown = Az(owner.program, tmp_path_factory.mktemp("stranger"), str(other.certificate))
    unknown.run("extension", "add", "--source", str(site.wheel), "--yes")
    with warmed(unknown) as az:
        yield az


@pytest.fixture
def key(site: Site) -> Path:
    return site.service.service.settings.admin_key_file


def test_azure_login_suffices_with_rp_endpoint(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name, "--rp-endpoint", site.service.connection.url)
    assert site.admin.get(name).json["systemData"]["createdByType"] == "Application"


@pytest.mark.parametrize("audience", ["", "https://management.azure.com/", "https://vault.azure.net"])
def test_token_for_azure_is_not_sent_to_self_hosted_service(
    az: WarmAz, site: Site, between: Between, audience: str
) -> None:
    """The service between could use the user's token in Azure."""
    words = ("aks", "flex-node", "list", *ON, "--rp-endpoint", between.url)
    done = az.run(*words, "--rp-audience", audience or site.cloud.url, check=False)
    assert not done.ok
    assert f"are not sent to {between.url}, because another service may accept them." in done.err
    assert between.asked == []


def test_audience_of_self_hosted_service_is_required(stranger: WarmAz, site: Site, between: Between) -> None:
    words = ("aks", "flex-node", "list", *ON, "--subscription", SUBSCRIPTION_ID, "--rp-endpoint", between.url)
    done = stranger.run(*words, "--rp-ca-file", site.cloud.ca, check=False)
    assert f"--rp-audience is required: which tokens does {between.url} accept?" in done.err
    assert between.asked == []


def test_admin_key_suffices_without_azure_login(stranger: WarmAz, site: Site, key: Path, name: str) -> None:
    words = ("--rp-endpoint", site.service.connection.url, "--rp-key-file", str(key), "--rp-ca-file", site.cloud.ca)
    made = flex(stranger, "create", "--name", name, "--subscription", SUBSCRIPTION_ID, *words)
    assert made["id"] == f"{CLUSTER}/flexNodeConfig/{name}"
    assert stranger("aks", "flex-node", "show", "--ids", made["id"], *words)["name"] == name


def test_provider_options_can_be_set_in_az_config(stranger: WarmAz, site: Site, key: Path, name: str) -> None:
    site.admin.put(name)
    settings = {"rp_endpoint": site.service.connection.url, "rp_key_file": key, "rp_ca_file": site.cloud.ca}
    stranger.run("config", "set", *(f"aks_flex_node.{option}={value}" for option, value in settings.items()))
    ask = ("aks", "flex-node", "show", *ON, "--name", name, "--subscription", SUBSCRIPTION_ID)
    try:
        assert stranger(*ask)["name"] == name
        elsewhere = stranger.run(*ask, env={"AZURE_AKS_FLEX_NODE_RP_ENDPOINT": "nonsense"}, check=False)
        assert "'nonsense' is not a valid service URL." in elsewhere.err
    finally:
        stranger.run("config", "unset", *(f"aks_flex_node.{option}" for option in settings))


@pytest.mark.parametrize("by", ["option", "variable"])
def test_configured_admin_key_is_not_sent_to_another_endpoint(
    stranger: WarmAz, site: Site, between: Between, key: Path, by: str
) -> None:
    """No user is signed in, so there is no other credential to send."""
    settings = {"rp_endpoint": site.service.connection.url, "rp_key_file": key}
    stranger.run("config", "set", *(f"aks_flex_node.{option}={value}" for option, value in settings.items()))
    ask = ("aks", "flex-node", "list", *ON, "--subscription", SUBSCRIPTION_ID, "--rp-ca-file", site.cloud.ca)
    other = {"option": ("--rp-endpoint", between.url), "variable": ()}[by]
    env = {} if other else {"AZURE_AKS_FLEX_NODE_RP_ENDPOINT": between.url}
    try:
        done = stranger.run(*ask, *other, env=env, check=False)
        assert "rp_key_file from" in done.err
        assert f"it is not configured for {between.url}." in done.err
        assert between.asked == []
        given = {**env, "AZURE_AKS_FLEX_NODE_RP_KEY_FILE": str(key)}
        assert stranger.run(*ask, *other, env=given, check=False).ok is (by == "variable")
    finally:
        stranger.run("config", "unset", *(f"aks_flex_node.{option}" for option in settings))


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "Set its ID with --subscription."), (("--subscription", "my-own"), "'my-own' is not an ID")],
)
def test_subscription_id_is_required_without_azure_login(
    stranger: WarmAz, site: Site, key: Path, words: tuple[str, ...], said: str
) -> None:
    service = ("--rp-endpoint", site.service.connection.url, "--rp-key-file", str(key), "--rp-ca-file", site.cloud.ca)
    done = stranger.run("aks", "flex-node", "list", *ON, *service, *words, check=False)
    assert not done.ok
    assert said in done.err


def test_rp_endpoint_accepts_subscription_that_azure_does_not_know(az: WarmAz, site: Site) -> None:
    """The service answers that it has no such cluster; az itself does not refuse."""
    unknown = "99999999-8888-7777-6666-555555555555"
    words = ("aks", "flex-node", "list", *ON, "--subscription", unknown)
    done = az.run(*words, "--rp-endpoint", site.service.connection.url, check=False)
    assert "(AuthorizationFailed)" in done.err or "(ParentResourceNotFound)" in done.err
    assert f"/subscriptions/{unknown}" in done.err
    by_name = az.run(*words[:-1], "no-such", "--rp-endpoint", site.service.connection.url, check=False)
    assert "az knows no subscription of this name" in by_name.err
    through_azure = az.run(*words, check=False)
    assert f"Subscription '{unknown}' not found" in through_azure.err


def test_untrusted_provider_certificate_is_refused(stranger: WarmAz, site: Site, key: Path, name: str) -> None:
    words = (
        "--rp-endpoint",
        site.service.connection.url,
        "--rp-key-file",
        str(key),
        "--subscription",
        SUBSCRIPTION_ID,
    )
    done = stranger.run("aks", "flex-node", "show", *ON, "--name", name, *words, check=False)
    assert "is not trusted" in done.err
    assert "--rp-ca-file" in done.err


def test_wrong_admin_key_error_names_key_file(stranger: WarmAz, site: Site, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.key"
    wrong.touch(0o600)
    wrong.write_text("wrong")
    words = ("--rp-endpoint", site.service.connection.url, "--rp-key-file", str(wrong), "--rp-ca-file", site.cloud.ca)
    done = stranger.run("aks", "flex-node", "list", *ON, "--subscription", SUBSCRIPTION_ID, *words, check=False)
    assert done.code == 1
    assert f"Check that {wrong} contains the admin key of {site.service.connection.url}." in done.err
