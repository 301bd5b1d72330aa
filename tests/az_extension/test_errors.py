"""Tests of the errors that az reports, and of their remedies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from tests.az_extension.commands import flex, ran, refused, table
from tests.service.lab.cloud_harness import CLUSTER
from tests.service.ports import free_port

if TYPE_CHECKING:
    from tests.az_extension.harness import Site
    from tests.az_extension.recording_proxy import Between
    from tests.az_extension.warm_az import WarmAz
    from tests.azure_cli import Az


def test_login_with_wrong_secret_fails(owner: Az, site: Site) -> None:
    [somebody] = [each for each in site.cloud.directory.all() if each.name == "contributor"]
    words = ("--username", somebody.client_id, "--password", "wrong", "--tenant", TENANT_ID)
    assert not owner.run("login", "--service-principal", *words, check=False).ok


def test_reader_can_show_and_refused_update_names_required_role(reader: Az, site: Site, name: str) -> None:
    site.admin.put(name)
    assert flex(reader, "show", "--name", name)["name"] == name
    message = refused(reader, "update", "--name", name, "--max-pods", "9")
    assert "(AuthorizationFailed)" in message
    assert f'--role "Azure Kubernetes Service Contributor Role" --scope {CLUSTER}' in message


def test_show_of_missing_node_suggests_list_command(az: WarmAz) -> None:
    assert "az aks flex-node list -g edge --cluster-name plant" in refused(az, "show", "--name", "nobody", code=3)


def test_list_shows_refused_record_and_show_names_its_remedy(az: WarmAz, site: Site, name: str) -> None:
    """Attack: someone changes the row of a node in the database."""
    site.admin.put(name)
    store: Any = site.service.service.store
    site.service.call(store._write_many("UPDATE nodes SET config = '{}' WHERE key = $1", [(name,)]))
    try:
        [row] = [each for each in table(az, "list") if each.startswith(f"{name} ")]
        assert "RecordRefused: its content does not match its authentication code." in row
        message = refused(az, "show", "--name", name)
        assert f"`aks-flex-rp records show {name}`" in message
        assert "Run `aks-flex-rp explain record-refused`" in message
    finally:
        site.service.call(store.delete_node(CLUSTER.lower(), name, None))


def test_missing_cluster_is_reported_with_cluster_list_hint(az: WarmAz, site: Site) -> None:
    words = ("--rp-endpoint", site.service.connection.url)
    key = ("--rp-key-file", str(site.service.service.settings.admin_key_file))
    message = refused(az, "show", "--cluster", "nowhere", "--name", "x", *words, *key, code=3)
    assert "(ParentResourceNotFound)" in message
    assert "aks-flex-rp cluster list" in message


@pytest.mark.parametrize("nobody", ["", ".", ".."])
def test_invalid_node_or_cluster_name_is_refused_without_request(az: WarmAz, between: Between, nobody: str) -> None:
    """In a URL, `..` after a node is the cluster: a deletion would delete all its nodes."""
    for words in (("--cluster", "plant", "--name", nobody), ("--cluster", nobody, "--name", "edge-1")):
        message = refused(az, "delete", "--yes", "--rp-endpoint", between.url, *words)
        assert f"{nobody!r} is not a valid name." in message
    assert between.asked == []


def test_redirect_from_provider_is_refused(az: WarmAz, between: Between, name: str) -> None:
    """The request body may contain a secret."""
    between.answers.append((307, {"Location": f"{between.url}/elsewhere"}, {}))
    assert "is not a flex node resource provider. Check --rp-endpoint." in refused(
        az, "create", "--name", name, "--rp-endpoint", between.url, code=3
    )
    assert len(between.asked) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--max-pods", "5000"), "--max-pods: properties.nodeConfig.maxPods: "),
        (("--kubernetes-version", "9.9.9"), "--kubernetes-version: properties.versions.kubernetes: "),
        (("--labels", "-x=1"), "--labels: "),
        (("--taints", "a=b:Never"), "--taints: properties.nodeConfig.taints[0].effect: "),
        (("--taints", "nonsense"), "--taints: 'nonsense' is not a taint."),
        (("--labels", "nonsense"), "--labels: 'nonsense' is not a label."),
        (("--auth-method", "magic"), "'magic' is not a valid value for '--auth-method'"),
        (("--kubelet-config", "/nowhere"), "--kubelet-config: the file does not exist."),
        (("--rp-key-file", "x"), "--rp-key-file requires --rp-endpoint."),
        (("--rp-endpoint", "http://plain"), "--rp-endpoint: 'http://plain' is not a valid service URL."),
        (
            ("--rp-endpoint", "https://a.example/b"),
            "--rp-endpoint: 'https://a.example/b' is not a valid service URL.",
        ),
        (("--rp-endpoint", "https://me:word@host"), "--rp-endpoint: 'host' is not a valid service URL."),
        (("--rp-endpoint", "https://[::1"), "--rp-endpoint: 'https://[::1' is not a valid service URL."),
        (("--rp-endpoint", "https://host:port"), "--rp-endpoint: 'https://host:port' is not a valid service URL."),
        (("--rp-endpoint", "https://a", "--rp-ca-file", __file__), "test_errors.py does not contain a certificate."),
        (("--rp-endpoint", "https://a", "--rp-ca-file", "/nowhere"), "--rp-ca-file: the file does not exist."),
    ],
)
def test_invalid_option_value_is_reported_with_its_option(
    az: WarmAz, name: str, words: tuple[str, ...], said: str
) -> None:
    done = ran(az, "create", "--name", name, *words, check=False)
    assert not done.ok
    assert said in done.err


def test_throttled_request_is_retried_after_retry_after(az: WarmAz, site: Site, between: Between, name: str) -> None:
    between.refuse(429, "TooManyRequests", "Too many.", Retry_After="1")
    made = ran(az, "create", "--name", name, "--rp-endpoint", between.url)
    assert "Retrying in 1 s" in made.err
    assert site.admin.get(name).status == 200


def test_request_fails_when_retry_after_is_too_long(az: WarmAz, between: Between) -> None:
    between.refuse(429, "TooManyRequests", "Too many.", Retry_After="3600")
    message = refused(az, "show", "--name", "x", "--rp-endpoint", between.url)
    assert "(TooManyRequests) Too many." in message
    assert "Try again in 3600 s." in message
    assert len(between.asked) == 1


def test_write_is_not_retried_after_bad_gateway(az: WarmAz, between: Between, name: str) -> None:
    between.refuse(502, "BadGateway", "Nobody is there.")
    assert "(BadGateway) Nobody is there." in refused(az, "create", "--name", name, "--rp-endpoint", between.url)
    assert len(between.asked) == 1


def test_unknown_resource_type_error_suggests_checking_rp_endpoint(az: WarmAz, between: Between) -> None:
    between.refuse(404, "InvalidResourceType", "The resource type could not be found.")
    assert "is not a flex node resource provider. Check --rp-endpoint." in refused(
        az, "show", "--name", "x", "--rp-endpoint", between.url, code=3
    )


def test_unreachable_provider_is_reported_with_serve_hint(az: WarmAz) -> None:
    message = refused(az, "show", "--name", "x", "--rp-endpoint", f"https://localhost:{free_port()}")
    assert "does not respond" in message
    assert "aks-flex-rp serve" in message
