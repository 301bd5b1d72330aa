"""Tests of a self-hosted service, called directly instead of through ARM."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.arm.managed_clusters import SUBSCRIPTION_ID
from aks_flex_lab.pki import CertificateAuthority
from tests.az_extension.commands import flex, ran, refused
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


@pytest.fixture
def remote(site: Site, key: Path) -> tuple[str, ...]:
    """Returns the options of a user who has the admin key and the CA of the service."""
    return ("--rp-endpoint", site.service.connection.url, "--rp-key-file", str(key), "--rp-ca-file", site.cloud.ca)


@contextmanager
def configured(az: Az, **settings: object) -> Iterator[None]:
    """Stores the settings of the extension in az, for the duration of the block."""
    az.run("config", "set", *(f"aks_flex_node.{option}={value}" for option, value in settings.items()))
    try:
        yield
    finally:
        az.run("config", "unset", *(f"aks_flex_node.{option}" for option in settings))


def test_azure_login_suffices_with_rp_endpoint(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name, "--rp-endpoint", site.service.connection.url)
    assert site.admin.get(name).json["systemData"]["createdByType"] == "Application"


@pytest.mark.parametrize("audience", ["", "https://management.azure.com/", "https://vault.azure.net"])
def test_token_for_azure_is_not_sent_to_self_hosted_service(
    az: WarmAz, site: Site, between: Between, audience: str
) -> None:
    """The service between could use the user's token in Azure."""
    words = ("--rp-endpoint", between.url, "--rp-audience", audience or site.cloud.url)
    message = refused(az, "list", *words)
    assert f"are not sent to {between.url}, because another service may accept them." in message
    assert between.asked == []


def test_audience_of_self_hosted_service_is_required(stranger: WarmAz, site: Site, between: Between) -> None:
    words = ("list", "--subscription", SUBSCRIPTION_ID, "--rp-endpoint", between.url)
    assert f"--rp-audience is required: which tokens does {between.url} accept?" in refused(
        stranger, *words, "--rp-ca-file", site.cloud.ca
    )
    assert between.asked == []


def test_admin_key_suffices_without_azure_login(stranger: WarmAz, remote: tuple[str, ...], name: str) -> None:
    made = flex(stranger, "create", "--name", name, "--subscription", SUBSCRIPTION_ID, *remote)
    assert made["id"] == f"{CLUSTER}/flexNodeConfig/{name}"
    assert stranger("aks", "flex-node", "show", "--ids", made["id"], *remote)["name"] == name


def test_provider_options_can_be_set_in_az_config(stranger: WarmAz, site: Site, key: Path, name: str) -> None:
    site.admin.put(name)
    ask = ("show", "--name", name, "--subscription", SUBSCRIPTION_ID)
    with configured(stranger, rp_endpoint=site.service.connection.url, rp_key_file=key, rp_ca_file=site.cloud.ca):
        assert flex(stranger, *ask)["name"] == name
        message = refused(stranger, *ask, env={"AZURE_AKS_FLEX_NODE_RP_ENDPOINT": "nonsense"})
        assert "'nonsense' is not a valid service URL." in message


@pytest.mark.parametrize("by", ["option", "variable"])
def test_configured_admin_key_is_not_sent_to_another_endpoint(
    stranger: WarmAz, site: Site, between: Between, key: Path, by: str
) -> None:
    """No user is signed in, so there is no other credential to send."""
    ask = ("list", "--subscription", SUBSCRIPTION_ID, "--rp-ca-file", site.cloud.ca)
    other = {"option": ("--rp-endpoint", between.url), "variable": ()}[by]
    env = {} if other else {"AZURE_AKS_FLEX_NODE_RP_ENDPOINT": between.url}
    with configured(stranger, rp_endpoint=site.service.connection.url, rp_key_file=key):
        message = refused(stranger, *ask, *other, env=env)
        assert "rp_key_file from" in message
        assert f"it is not configured for {between.url}." in message
        assert between.asked == []
        given = {**env, "AZURE_AKS_FLEX_NODE_RP_KEY_FILE": str(key)}
        assert ran(stranger, *ask, *other, env=given, check=False).ok is (by == "variable")


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "Set its ID with --subscription."), (("--subscription", "my-own"), "'my-own' is not an ID")],
)
def test_subscription_id_is_required_without_azure_login(
    stranger: WarmAz, remote: tuple[str, ...], words: tuple[str, ...], said: str
) -> None:
    assert said in refused(stranger, "list", *remote, *words)


def test_rp_endpoint_accepts_subscription_that_azure_does_not_know(az: WarmAz, site: Site) -> None:
    """The service answers that it has no such cluster; az itself does not refuse."""
    unknown = "99999999-8888-7777-6666-555555555555"
    words = ("list", "--subscription", unknown)
    message = refused(az, *words, "--rp-endpoint", site.service.connection.url)
    assert "(AuthorizationFailed)" in message or "(ParentResourceNotFound)" in message
    assert f"/subscriptions/{unknown}" in message
    assert "az knows no subscription of this name" in refused(
        az, *words[:-1], "no-such", "--rp-endpoint", site.service.connection.url
    )
    assert f"Subscription '{unknown}' not found" in refused(az, *words)


def test_untrusted_provider_certificate_is_refused(stranger: WarmAz, remote: tuple[str, ...], name: str) -> None:
    message = refused(stranger, "show", "--name", name, "--subscription", SUBSCRIPTION_ID, *remote[:-2])
    assert "is not trusted" in message
    assert "--rp-ca-file" in message


def test_wrong_admin_key_error_names_key_file(
    stranger: WarmAz, site: Site, remote: tuple[str, ...], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.key"
    wrong.touch(0o600)
    wrong.write_text("wrong")
    words = ("--subscription", SUBSCRIPTION_ID, *remote, "--rp-key-file", str(wrong))
    message = refused(stranger, "list", *words)
    assert f"Check that {wrong} contains the admin key of {site.service.connection.url}." in message
