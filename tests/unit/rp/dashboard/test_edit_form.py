"""Tests of the edit form: properties to fields and back, without loss."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.settings.api import api_settings
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.dashboard import edit_form

Document = dict[str, Any]
WINDOW = {"days": ["Monday", "Sunday"], "start": "22:00", "durationMinutes": 30, "timeZone": "Europe/Berlin"}
EVERYTHING: Document = {
    "continuousMonitoring": False,
    "azureAuth": {"method": "servicePrincipal", "servicePrincipal": {"clientId": "c"}},
    "kubernetesAuth": {"method": "certificate"},
    "versions": {"kubernetes": "1.34.4", "agent": "1.0.0"},
    "nodeConfig": {
        "labels": {"a": "", "example.com/b": "x=y"},
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "e", "effect": "NoExecute"}],
        "maxPods": 60,
        "kubelet": {"extraConfig": {"deep": {"er": [1, None]}}, "kubeReserved": {}},
        "vpn": {"enabled": True},
        "driftPolicy": "repair",
        "updatePolicy": {"paused": False, "drain": False, "maintenanceWindow": WINDOW},
        "unbootstrapOnDelete": True,
        "registryMirrors": {"mcr.microsoft.com": ["https://mirror.example"]},
    },
}


@pytest.mark.parametrize(
    "properties",
    [EVERYTHING, {}, {"azureAuth": {"method": "none"}}, {"nodeConfig": {"labels": {}, "taints": [], "maxPods": 1}}],
)
def test_unmodified_form_keeps_properties(properties: Document) -> None:
    found = edit_form.parse_form(edit_form.form_fields(properties), properties)
    assert found.document == properties
    assert found.errors == []


@pytest.mark.parametrize("place", edit_form.FIELDS_BY_PATH, ids=".".join)
def test_every_form_field_maps_to_an_existing_property(place: tuple[str, ...]) -> None:
    assert ".".join(place) in api_settings()


def test_checkboxes_and_selections_are_parsed_into_properties() -> None:
    form = {
        **edit_form.form_fields({}),
        "monitored": "yes",
        "paused": "yes",
        "leaves": "",
        "drift": "log",
        "day-Friday": "yes",
    }
    found = edit_form.parse_form(form, {}).document
    policy = {"paused": True, "maintenanceWindow": {"days": ["Friday"]}}
    node = {"driftPolicy": "log", "unbootstrapOnDelete": False, "updatePolicy": policy}
    assert found == {"continuousMonitoring": True, "nodeConfig": node}


def test_emptied_agent_version_is_removed() -> None:
    form = {**edit_form.form_fields(EVERYTHING), "version-agent": ""}
    assert edit_form.parse_form(form, EVERYTHING).document["versions"] == {"kubernetes": "1.34.4"}


def test_emptied_maintenance_window_is_removed() -> None:
    form = {**edit_form.form_fields(EVERYTHING), "window-start": "", "window-minutes": "", "window-zone": ""}
    form |= dict.fromkeys(("day-Monday", "day-Sunday"), "")
    found = edit_form.parse_form(form, EVERYTHING).document
    assert found["nodeConfig"]["updatePolicy"] == {"paused": False, "drain": False}


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("labels", "a", "“a” is not a label"),
        ("labels", "=x", "“=x” is not a label"),
        ("labels", "a=1\na=2", "duplicated"),
        ("taints", "a=b", "is not a taint"),
        ("taints", ":NoSchedule", "is not a taint"),
        ("max-pods", "many", "whole number"),
        ("max-pods", "9" * 30, "whole number"),
        ("rest", "{", "not JSON"),
        ("rest", "[]", "JSON object"),
        ("rest", '{"versions": {"runc": "1.5.2"}}', "Set versions.runc in its field above"),
        ("rest", '{"azureAuth": {"servicePrincipal": {"clientSecret": "s"}}}', "secret in its field above"),
        ("client-secret", "s", "do not contain a service principal"),
    ],
)
def test_unparsable_form_value_is_reported_at_its_field(field: str, text: str, words: str) -> None:
    [wrong] = edit_form.parse_form({**edit_form.form_fields({}), field: text}, {}).errors
    assert wrong.field == field
    assert words in wrong.message


def test_client_secret_is_parsed_but_never_shown_again() -> None:
    form = {**edit_form.form_fields(EVERYTHING), "client-secret": "s3cret"}
    found = edit_form.parse_form(form, EVERYTHING).document
    assert found["azureAuth"]["servicePrincipal"] == {"clientId": "c", "clientSecret": "s3cret"}
    assert "s3cret" not in str(edit_form.posted_fields(form))
    for rest in ('{"clientSecret" : "s3cret"}', '{"x": {"clientSecret": "s3cret\\"more', '{"clientSecret":"s3cret'):
        assert "s3cret" not in edit_form.posted_fields({"rest": rest})["rest"]


@pytest.mark.parametrize(
    ("target", "field"),
    [
        ("properties.nodeConfig.labels['example.com/a']", "labels"),
        ("properties.nodeConfig.taints[1].key", "taints"),
        ("properties.versions.runc", "version-runc"),
        ("properties.nodeConfig.maxPods", "max-pods"),
        ("properties.nodeConfig.updatePolicy.maintenanceWindow.start", "window-start"),
        ("properties.nodeConfig.updatePolicy.maintenanceWindow.days[0]", "window-days"),
        ("properties.azureAuth.servicePrincipal.clientSecret", "client-secret"),
        ("properties.azureAuth.method", "rest"),
        ("properties.nodeConfig.kubelet.verbosity", "rest"),
        ("", ""),
    ],
)
def test_api_validation_errors_are_mapped_to_form_fields(target: str, field: str) -> None:
    [wrong] = edit_form.locate_errors([Problem(target, "is wrong.")])
    assert wrong.field == field
    assert wrong.message.endswith("is wrong.")


def test_remaining_properties_are_shown_as_json() -> None:
    rest = json.loads(edit_form.form_fields(EVERYTHING)["rest"])
    assert rest["nodeConfig"].keys() == {"kubelet", "vpn", "updatePolicy", "registryMirrors"}
    assert rest["nodeConfig"]["updatePolicy"] == {"drain": False}
