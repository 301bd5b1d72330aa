"""The remedies of errors of `aks-flex-rp cluster`, with an API server on loopback."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import httpx2
import pytest

from aks_flex_lab.pki import CertificateAuthority
from aks_flex_rp.arm.ids import ClusterId
from tests.remedies.catalogue import advice, command
from tests.remedies.rp.harness import api_server, fails, our_command
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.cli.cli_harness import Person

if TYPE_CHECKING:
    from pathlib import Path

    from tests.remedies.rp.harness import ApiServer, AzureStub
    from tests.service.rp.api.service_harness import Running

ID = str(PLANT)
OTHER = str(ClusterId(PLANT.subscription, "Edge", "Other"))


@pytest.mark.remedy("cluster-already-managed")
def test_cluster_is_removed_from_the_other_provider_or_taken_over(
    somebody: Person, kubernetes: ApiServer, tmp_path: Path
) -> None:
    other = Person(tmp_path / "other")
    other.does(*kubernetes.add(OTHER))
    fails(somebody, "cluster-already-managed", *kubernetes.add())

    other.does(*our_command("cluster-already-managed", "cluster remove", **{"CLUSTER-ID": OTHER}))
    somebody.does(*kubernetes.add())
    fails(other, "cluster-already-managed", *kubernetes.add(OTHER))
    [force] = command("cluster-already-managed", "--force")
    other.does(*kubernetes.add(OTHER, force))


@pytest.mark.remedy("cluster-has-nodes")
def test_cluster_without_nodes_is_removed(service: Running, person: Person) -> None:
    person.does("node", "create", "--cluster", ID, "--name", "edge-1")
    fails(person, "cluster-has-nodes", "cluster", "remove", ID)

    person.does(*our_command("cluster-has-nodes", "node delete"), "--cluster", ID, "--name", "edge-1", "--yes")
    person.does("cluster", "remove", ID)


@pytest.mark.remedy("cluster-credentials-invalid")
def test_new_kubeconfig_replaces_damaged_certificates(
    somebody: Person, kubernetes: ApiServer, authority: CertificateAuthority
) -> None:
    one, other = (authority.issue(name, name, names=()) for name in ("one", "other"))
    pair = {"client_certificate_data": one.certificate, "client_key_data": other.key}
    mixed = kubernetes.kubeconfig(
        **{name: base64.b64encode(file.read_bytes()).decode() for name, file in pair.items()}
    )
    fails(somebody, "cluster-credentials-invalid", "cluster", "add", ID, "--kubeconfig", str(mixed))

    new = str(kubernetes.kubeconfig())
    somebody.does(*our_command("cluster-credentials-invalid", "cluster add", ID=ID, FILE=new))


@pytest.mark.remedy("cluster-unreachable")
def test_command_succeeds_when_api_server_is_started(
    somebody: Person, authority: CertificateAuthority, tmp_path: Path
) -> None:
    with api_server(authority, tmp_path) as kubernetes:
        words = kubernetes.add()
        somebody.does(*words)
    fails(somebody, "cluster-unreachable", *words)

    advice("cluster-unreachable", "Start the API server")
    with api_server(authority, tmp_path, int(kubernetes.url.rpartition(":")[2])):
        somebody.does(*words)


@pytest.mark.remedy("cluster-untrusted")
def test_cluster_with_a_new_ca_is_added_with_a_new_kubeconfig(
    somebody: Person, authority: CertificateAuthority, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    new = CertificateAuthority(tmp_path / "new")
    new.ensure()
    with api_server(authority, tmp_path) as kubernetes:
        somebody.does(*kubernetes.add())
    with api_server(new, tmp_path, int(kubernetes.url.rpartition(":")[2])) as replaced:
        fails(somebody, "cluster-untrusted", "cluster", "check", ID)

        advice(
            "cluster-untrusted", "If the CA of the cluster was replaced, add the cluster again with a new kubeconfig."
        )
        somebody.does(*replaced.add())
        somebody.does("cluster", "check", ID)


def test_cluster_that_cannot_be_identified_or_read_is_refused(somebody: Person, kubernetes: ApiServer) -> None:
    somebody.does("init")
    fails(somebody, "cluster-not-found", "cluster", "check", ID)
    fails(somebody, "cluster-id-invalid", *kubernetes.add("plant"))
    fails(somebody, "kubeconfig-unreadable", "cluster", "add", ID, "--kubeconfig", "/nowhere")
    insecure = str(kubernetes.kubeconfig(insecure_skip_tls_verify=True))
    fails(somebody, "kubeconfig-invalid", "cluster", "add", ID, "--kubeconfig", insecure)
    kubernetes.api.answers["GET /version"] = lambda _: httpx2.Response(200, json={"version": "of a web shop"})
    fails(somebody, "kubernetes-version-unknown", *kubernetes.add())


def test_cluster_without_local_accounts_is_added_with_a_kubeconfig(
    somebody: Person, kubernetes: ApiServer, azure: AzureStub
) -> None:
    option = ("--config", str(azure.config))
    fails(somebody, "cluster-credential-missing", "cluster", "add", ID, *option)

    somebody.does(*kubernetes.add(), *option)
    azure.kubeconfig = kubernetes.kubeconfig().read_bytes()
    somebody.does("cluster", "add", ID, *option)
