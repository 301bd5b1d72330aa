"""Tests of request validation: valid bodies are accepted, invalid ones have errors in ARM's format."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.config.loader import load_text
from tests.service.rp.api.client import API_VERSION
from tests.service.rp.api.fake_clusters import ISLAND
from tests.unit.rp.resource.body_cases import Case, cases

if TYPE_CHECKING:
    from tests.service.rp.api.client import Api

PLAIN = {kind: [case for case in cases(kind) if not case.around] for kind in ("valid", "invalid")}


@pytest.mark.parametrize("case", PLAIN["valid"], ids=str)
def test_valid_body_creates_node_with_bundle_that_agent_accepts(admin: Api, name: str, case: Case) -> None:
    body = copy.deepcopy(case.body)
    if "name" in body:
        body["name"] = name

    made = admin.put(name, body, url=True)

    assert made.status == 201, made.text
    url = made.properties["configUrl"]
    bundle = admin.fetch(url)
    assert bundle.status == 200
    if case.agent:
        loaded = load_text(bundle.text, "the bundle", {}, {})
        assert loaded.config.node.name == name
        assert loaded.warnings == []


@pytest.mark.parametrize("case", PLAIN["invalid"], ids=str)
def test_invalid_body_is_refused_with_all_errors(admin: Api, name: str, case: Case) -> None:
    refused = admin.put(name, case.body)

    refused.assert_refused(400, "InvalidRequestContent")
    problems = refused.error.get("details") or [refused.error]
    assert sorted(each["target"] for each in problems) == sorted(case.targets)
    assert "s3cret" not in refused.text
    assert admin.get(name).status == 404


def test_cluster_without_entra_id_refuses_node_with_azure_auth(admin: Api, name: str) -> None:
    [case] = [case for case in cases("valid") if case.name == "principal-joins-by-itself"]

    admin.at(ISLAND).put(name, case.body).assert_refused(
        400, "InvalidRequestContent", "properties.kubernetesAuth.useAzureAuth"
    )


def versions(**chosen: str) -> dict[str, Any]:
    return {"properties": {"versions": chosen}}


def test_downgrade_is_refused_without_allow_downgrade(admin: Api, name: str) -> None:
    newer = versions(kubernetes="1.34.4")
    older = versions(kubernetes="1.33.1")
    etag = admin.put(name, newer).headers["etag"]

    admin.put(name, older).assert_refused(400, "InvalidRequestContent", "properties.versions.kubernetes")
    assert admin.put(name, older, if_match=etag).status == 400
    query = {"api-version": API_VERSION, "allowDowngrade": "true"}
    assert admin.ask("PUT", admin.path(name), older, query=query).status == 200
    assert admin.get(name).properties["config"]["kubernetes"]["version"] == "1.33.1"


def test_return_to_running_version_after_failed_upgrade_is_no_downgrade(admin: Api, name: str) -> None:
    older = versions(kubernetes="1.33.1", runc="1.1.0")
    admin.put(name, versions(kubernetes="1.34.4", runc="1.2.0"))
    went_back = [{"type": "UpgradeFailed", "status": "True"}]
    admin.report(name, {"conditions": went_back, "kubeletVersion": "v1.33.1"})

    assert admin.put(name, versions(kubernetes="1.32.9")).status == 400
    assert admin.put(name, older).status == 200


def test_allow_downgrade_is_sent_to_node_until_config_is_applied(admin: Api, name: str) -> None:
    query = {"api-version": API_VERSION, "allowDowngrade": "true"}
    allowed = {"updatePolicy": {"allowDowngrade": True}}.items()

    admin.ask("PUT", admin.path(name), {}, query=query)
    assert allowed <= admin.get(name).properties["config"].items()
    assert "nodeConfig" not in admin.get(name).properties  # allowDowngrade is not stored as a property
    admin.regenerate(name)
    assert allowed <= admin.get(name).properties["config"].items()

    version = admin.put(name).properties["configVersion"]
    assert allowed <= admin.get(name).properties["config"].items()

    admin.report(name, {"conditions": [], "appliedConfigVersion": version})
    admin.put(name)
    assert "updatePolicy" not in admin.get(name).properties["config"]


def test_put_without_version_keeps_what_a_machine_may_have(admin: Api, name: str) -> None:
    def without() -> list[str]:
        config = admin.put(name).properties["config"]
        return [config[component]["version"] for component in ("kubernetes", "containerd")]

    defaults = without()
    chosen = ["1.33.1", "3.0.0"]
    admin.put(name, versions(kubernetes="1.34.4", containerd=chosen[1]))
    assert without() == defaults  # no machine has joined

    query = {"api-version": API_VERSION, "allowDowngrade": "true"}
    admin.ask("PUT", admin.path(name), versions(kubernetes=chosen[0], containerd=chosen[1]), query=query)
    admin.report(name, {"conditions": []})
    assert without() == chosen
    admin.ask("PUT", admin.path(name), {}, query=query)
    assert admin.get(name).properties["config"]["containerd"]["version"] == defaults[1]


def test_untested_version_is_accepted_and_shown_as_a_condition(admin: Api, name: str) -> None:
    made = admin.put(name, versions(runc="1.1.12"))

    assert made.status == 201
    [shown] = [each for each in made.properties["status"]["conditions"] if each["type"] == "VersionsTested"]
    assert (shown["status"], shown["reason"]) == ("False", "VersionNotTested")
    assert shown["message"] == "runc 1.1.12 is not in the table of tested versions (1.4, 1.5)."
    assert shown in admin.status(name)["conditions"]

    tested = admin.put(name, versions(runc="1.5.2")).properties["status"]["conditions"]
    assert "VersionsTested" not in [each["type"] for each in tested]


def test_vpn_client_range_overlapping_cluster_addresses_is_refused(admin: Api, name: str) -> None:
    refused = admin.put(name, {"properties": {"nodeConfig": {"vpn": {"p2sGatewayCIDR": "10.0.0.0/24"}}}})

    refused.assert_refused(400, "InvalidRequestContent", "properties.nodeConfig.vpn.p2sGatewayCIDR")
    assert "DNS service" in refused.error["message"]
