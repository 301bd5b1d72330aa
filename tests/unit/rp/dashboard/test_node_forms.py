"""Properties become fields and fields properties, and nothing is lost on the way."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aks_flex_node.rp.arm.problems import Problem
from aks_flex_node.rp.dashboard import node_forms
from aks_flex_node.rp.dashboard.editing import merged
from aks_flex_node.rp.dashboard.node_forms import Wrong
from aks_flex_node.rp.resource.models import Properties

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
def test_a_form_that_is_sent_as_it_came_changes_nothing(properties: Document) -> None:
    found = node_forms.read(node_forms.filled(properties), properties)
    assert found.properties == properties
    assert found.wrong == []


@pytest.mark.parametrize("place", node_forms.PLACES, ids=".".join)
def test_every_field_stands_for_a_setting_that_there_is(place: tuple[str, ...]) -> None:
    schema = Properties.model_json_schema()
    here: Document = schema
    for step in place:
        here = here["properties"][step]
        here = next((each for each in here.get("anyOf", [here]) if each.get("type") != "null"), here)
        if "$ref" in here:
            here = schema["$defs"][here["$ref"].rpartition("/")[2]]


def test_ticks_and_choices_are_what_they_say() -> None:
    form = {
        **node_forms.filled({}),
        "monitored": "yes",
        "paused": "yes",
        "leaves": "",
        "drift": "log",
        "day-Friday": "yes",
    }
    found = node_forms.read(form, {}).properties
    policy = {"paused": True, "maintenanceWindow": {"days": ["Friday"]}}
    node = {"driftPolicy": "log", "unbootstrapOnDelete": False, "updatePolicy": policy}
    assert found == {"continuousMonitoring": True, "nodeConfig": node}


def test_a_window_that_is_emptied_is_gone() -> None:
    form = {**node_forms.filled(EVERYTHING), "window-start": "", "window-minutes": "", "window-zone": ""}
    form |= dict.fromkeys(("day-Monday", "day-Sunday"), "")
    found = node_forms.read(form, EVERYTHING).properties
    assert found["nodeConfig"]["updatePolicy"] == {"paused": False, "drain": False}


@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("labels", "a", "“a” is no label"),
        ("labels", "=x", "“=x” is no label"),
        ("labels", "a=1\na=2", "twice"),
        ("taints", "a=b", "is no taint"),
        ("taints", ":NoSchedule", "is no taint"),
        ("max-pods", "many", "whole number"),
        ("max-pods", "9" * 30, "whole number"),
        ("rest", "{", "not JSON"),
        ("rest", "[]", "JSON object"),
        ("rest", '{"versions": {"runc": "1.5.2"}}', "versions.runc has a field of its own"),
        ("rest", '{"azureAuth": {"servicePrincipal": {"clientSecret": "s"}}}', "secret has a field of its own"),
        ("client-secret", "s", "no service principal"),
    ],
)
def test_what_cannot_be_read_is_told_at_its_field(field: str, text: str, words: str) -> None:
    [wrong] = node_forms.read({**node_forms.filled({}), field: text}, {}).wrong
    assert wrong.field == field
    assert words in wrong.message


def test_a_secret_goes_where_it_belongs_and_never_comes_back() -> None:
    form = {**node_forms.filled(EVERYTHING), "client-secret": "s3cret"}
    found = node_forms.read(form, EVERYTHING).properties
    assert found["azureAuth"]["servicePrincipal"] == {"clientId": "c", "clientSecret": "s3cret"}
    assert "s3cret" not in str(node_forms.posted(form))
    for rest in ('{"clientSecret" : "s3cret"}', '{"x": {"clientSecret": "s3cret\\"more', '{"clientSecret":"s3cret'):
        assert "s3cret" not in node_forms.posted({"rest": rest})["rest"]


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
def test_what_the_api_finds_wrong_is_told_where_it_was_written(target: str, field: str) -> None:
    [wrong] = node_forms.located([Problem(target, "is wrong.")])
    assert wrong.field == field
    assert wrong.message.endswith("is wrong.")


def test_the_taint_that_is_wrong_is_named() -> None:
    problem = Problem("properties.nodeConfig.taints[1].effect", "The value must be one of these.")
    assert node_forms.located([problem], "a:NoSchedule\n\n b:Never\n") == [
        Wrong("taints", "b:Never: The value must be one of these.")
    ]


def test_an_older_version_is_asked_about_in_the_words_of_the_form() -> None:
    said = (
        "'1.33.1' is older than the node's 1.34.4. If that is meant, say so: --allow-downgrade, or "
        "allowDowngrade=true in the query."
    )
    [wrong] = node_forms.located([Problem("properties.versions.kubernetes", said)])
    assert wrong.message == "'1.33.1' is older than the node's 1.34.4. If that is meant, tick so below."


def test_two_who_change_different_things_both_get_theirs() -> None:
    opened = {"nodeConfig": {"maxPods": 1}}
    mine = {"nodeConfig": {"maxPods": 1, "labels": {"a": "1"}}}
    theirs = {"nodeConfig": {"maxPods": 2, "labels": {"b": "2"}}}
    both = merged(opened, mine, theirs)
    assert both.properties == {"nodeConfig": {"maxPods": 2, "labels": {"a": "1", "b": "2"}}}
    assert [each.yours for each in both.theirs] == [None, None]


def test_two_who_change_the_same_are_told_of_each_other() -> None:
    both = merged({"v": {"x": "1"}}, {"v": {"x": "2"}}, {"v": {"x": "3"}, "n": {"y": "4"}})
    assert both.properties == {"v": {"x": "2"}, "n": {"y": "4"}}
    told = {each.name: (each.before, each.after, each.yours) for each in both.theirs}
    assert told == {"v.x": ("1", "3", "2"), "n.y": ("", "4", None)}


def test_the_rest_is_readable_json() -> None:
    rest = json.loads(node_forms.filled(EVERYTHING)["rest"])
    assert rest["nodeConfig"].keys() == {"kubelet", "vpn", "updatePolicy", "registryMirrors"}
    assert rest["nodeConfig"]["updatePolicy"] == {"drain": False}
