"""Tests of the forms of settings: for every setting of the table, its field or the JSON field, and back."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from aks_flex_node.settings.api import ApiSetting, api_settings
from aks_flex_node.settings.base import FieldType
from aks_flex_node.settings.setting import DISTURBS
from aks_flex_rp.arm.errors import Problem
from aks_flex_rp.arm.ids import ClusterId
from aks_flex_rp.dashboard import document_diff, setting_fields
from aks_flex_rp.dashboard.page_renderer import PageRenderer
from aks_flex_rp.dashboard.scopes import ShownCluster
from aks_flex_rp.nodes.write_permissions import owner_settings

if TYPE_CHECKING:
    from aks_flex_rp.dashboard.setting_fields import SettingField

Document = dict[str, Any]
NODE, POOL = setting_fields.setting_fields(), setting_fields.setting_fields(of_pool=True)
BY_PATH = {each.path: each for each in NODE}
CLIENT = {"method": "servicePrincipal", "servicePrincipal": {"clientId": "c"}}
SECRET = "azureAuth-servicePrincipal-clientSecret"
PLANT = ShownCluster(ClusterId("12345678-1234-1234-1234-123456789abc", "Edge", "Plant"))
PRESS = SimpleNamespace(name="press-1", key="edge", pool=None)
VISIT: Any = SimpleNamespace(
    session=SimpleNamespace(form_token=""), caller=SimpleNamespace(name="me"), may_create=True, shown=None
)
WITH_SECRET = '{"azureAuth": {"servicePrincipal": {"clientSecret": "s3cret"}}}'


def sample(each: SettingField) -> Any:
    """Returns a value of a setting, which is not its default."""
    samples: dict[str, Any] = {
        "flag": not each.default,
        "number": 7,
        "list": list(each.choices[1:3]) or ["a b", "c"],
        "taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}, {"key": "e", "effect": "NoExecute"}],
        "map": {"a": "", "example.com/b": "x=y"},
        "lists": {"mcr.microsoft.com": ["https://mirror.example"]},
        "json": {"deep": {"er": [1, "x"]}},
    }
    return samples.get(each.kind, each.choices[-1] if each.choices else "text")


def labelled(entry: ApiSetting) -> SettingField:
    """Returns the field that a setting has, or would have with a label."""
    setting = msgspec.structs.replace(entry.setting, form=entry.setting.form or "Label")
    return setting_fields.setting_field(dataclasses.replace(entry, setting=setting))


def document(each: SettingField, value: Any) -> Document:
    return document_diff.apply_values({}, {each.steps: value})


def saved(properties: Document, **changed: str) -> setting_fields.ParsedForm:
    """Returns what a form saves that was opened with these properties, and in which fields were changed."""
    form = {**setting_fields.form_values(properties, NODE), **changed}
    return setting_fields.parse_form(form, properties, NODE)


@pytest.mark.parametrize("path", api_settings())
def test_every_setting_is_kept_by_an_unmodified_form(path: str) -> None:
    each = labelled(api_settings()[path])
    for value in (sample(each), each.empty):
        properties = {} if value is None else document(each, value)
        values = setting_fields.form_values(properties, NODE)
        found = saved(properties)
        assert found.errors == []
        if each.kind == "secret":
            assert found.document == {}
            assert "text" not in str(values)
            continue
        assert found.document == properties
        in_json = document_diff.value_at(json.loads(values["rest"]), each.steps)
        assert in_json == (None if path in BY_PATH else value)


@pytest.mark.parametrize("path", api_settings())
def test_every_setting_can_have_a_field_of_its_own(path: str) -> None:
    each, errors = labelled(api_settings()[path]), list[setting_fields.FieldError]()
    value = sample(each)
    assert each.kind == "secret" or each.parse(each.text(value), errors) == value
    assert each.parse(each.posted({}), errors) == each.empty
    assert errors == []


@pytest.mark.parametrize("each", NODE, ids=lambda each: each.path)
def test_every_field_is_shown_once_with_its_problems(each: SettingField) -> None:
    assert [each for group in setting_fields.group_fields(NODE).values() for each in group].count(each) == 1
    targets = {each.path, f"{each.path}[0]", f"{each.path}['example.com/a']", f"{each.path}.key"}
    for target in targets:
        [wrong] = [setting_fields.locate_error(Problem(f"properties.{target}", "is wrong."), {}, NODE)]
        assert (wrong.field, wrong.message) == (each.name, "is wrong.")


def test_form_of_a_pool_has_no_setting_of_one_node() -> None:
    paths = {each.path for each in POOL}
    assert paths - {"description"} == {path for path in BY_PATH if not api_settings()[path].setting.per_node}


def test_fields_say_what_a_change_disturbs() -> None:
    for entry in api_settings().values():
        disturbs = entry.setting.disturbs
        assert ("A change disturbs" in labelled(entry).hint) == (disturbs != "nothing")
        assert disturbs == "nothing" or DISTURBS[disturbs] in labelled(entry).hint


def test_fields_that_only_owners_can_set_say_so() -> None:
    marked = {
        each.path for each in map(labelled, api_settings().values()) if "Only owners of the cluster" in each.hint
    }
    assert marked == {each.path for each in owner_settings()}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nodeConfig-labels", "a", "“a” is not a label"),
        ("nodeConfig-labels", "=x", "“=x” is not a label"),
        ("nodeConfig-labels", "a=1\na=2", "duplicated"),
        ("nodeConfig-taints", "a=b", "is not a taint"),
        ("nodeConfig-taints", ":NoSchedule", "is not a taint"),
        ("nodeConfig-maxPods", "many", "whole number"),
        ("nodeConfig-maxPods", "9" * 30, "whole number"),
        ("rest", "{", "not JSON"),
        ("rest", "[]", "JSON object"),
        ("rest", '{"versions": {"runc": "1.5.2"}}', "Set versions.runc in its field above"),
        ("rest", WITH_SECRET, "clientSecret in its field above"),
    ],
)
def test_unparsable_form_value_is_reported_at_its_field(name: str, text: str, words: str) -> None:
    [wrong] = saved({}, **{name: text}).errors
    assert wrong.field == name
    assert words in wrong.message


def test_client_secret_is_parsed_but_never_shown_again() -> None:
    found = saved({"azureAuth": CLIENT}, **{SECRET: "s3cret"}).document
    assert found["azureAuth"]["servicePrincipal"] == {"clientId": "c", "clientSecret": "s3cret"}
    assert "s3cret" not in str(setting_fields.form_values(found, NODE).get(SECRET))
    for rest in (
        WITH_SECRET,
        '{"clientSecret" : "s3cret"}',
        '{"x": {"clientSecret": "s3cret\\"more',
        '"clientSecret":"s3',
    ):
        assert "s3" not in str(setting_fields.posted_values({SECRET: "s3cret", "rest": rest}, NODE))


def test_template_with_a_secret_is_refused() -> None:
    form = {**setting_fields.form_values({}, POOL), "rest": WITH_SECRET, SECRET: "s3cret"}
    [wrong] = setting_fields.parse_form(form, {}, POOL).errors
    assert (wrong.field, "s3cret" in wrong.message) == ("rest", False)
    assert "s3cret" not in str(setting_fields.posted_values(form, POOL))


def test_settings_of_other_identities_are_not_saved() -> None:
    form = {"azureAuth-method": "managedIdentity", "azureAuth-managedIdentity-clientId": "m"}
    for before in (CLIENT, {"method": "arc", "arc": {"tags": {"a": "b"}}}):
        found = saved({"azureAuth": before}, **form).document
        assert found["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"clientId": "m"}}


def test_form_of_a_new_node_leaves_everything_to_its_pool() -> None:
    form = setting_fields.form_values({}, NODE)
    assert setting_fields.parse_form(form, {}, NODE).document == {}


@pytest.mark.parametrize(("text", "value"), [("", None), ("yes", True), ("no", False)])
def test_node_has_a_flag_of_its_own_or_that_of_its_pool(text: str, value: bool | None) -> None:
    each = BY_PATH["nodeConfig.unbootstrapOnDelete"]
    assert each.text(value) == text
    assert setting_fields.parse_form({each.name: text}, {}, NODE).document == (
        {} if value is None else document(each, value)
    )


def test_emptied_maintenance_window_is_removed() -> None:
    window = {"days": ["Monday", "Sunday"], "start": "22:00", "durationMinutes": 30, "timeZone": "Europe/Berlin"}
    before = {"nodeConfig": {"updatePolicy": {"drain": False, "maintenanceWindow": window}}}
    names = {each.name: "" for each in NODE if "maintenanceWindow" in each.path}
    assert saved(before, **names).document == {"nodeConfig": {"updatePolicy": {"drain": False}}}


def test_check_boxes_of_days_are_read_from_the_form_and_from_its_preview() -> None:
    each = BY_PATH["nodeConfig.updatePolicy.maintenanceWindow.days"]
    days = each.posted({f"{each.name}-Sunday": "yes", f"{each.name}-Monday": "yes", f"{each.name}-Other": "yes"})
    assert each.parse(days, []) == each.parse(each.posted({each.name: days}), []) == ["Monday", "Sunday"]


@pytest.mark.parametrize(
    ("target", "name", "message"),
    [
        ("properties.azureAuth.managedIdentity", "azureAuth-managedIdentity-", "is wrong"),
        ("properties.azureAuth.arc.location", "rest", "azureAuth.arc.location: is wrong"),
        ("properties.template.nodeConfig.kubelet.verbosity", "rest", "nodeConfig.kubelet.verbosity: is wrong"),
        ("properties.template", "", "is wrong"),
        ("", "", "is wrong"),
        ("properties.template.nodeConfig.taints[1].effect", "nodeConfig-taints", "b:Never: is wrong"),
    ],
)
def test_problem_is_at_the_closest_field(target: str, name: str, message: str) -> None:
    values = {"nodeConfig-taints": "a:NoSchedule\n\nb:Never"}
    wrong = setting_fields.locate_error(Problem(target, "is wrong"), values, NODE)
    assert wrong.field.startswith(name)
    assert bool(wrong.field) == bool(name)
    assert wrong.message == message


def test_number_field_names_its_bounds() -> None:
    assert FieldType.of(api_settings()["nodeConfig.maxPods"].annotation).metadata_value("le") == 1024
    assert "1024" in BY_PATH["nodeConfig.maxPods"].hint


@pytest.mark.parametrize("kind", ["node", "pool"])
@pytest.mark.parametrize("is_new", [True, False])
def test_setting_with_a_label_appears_in_every_form(kind: str, is_new: bool) -> None:
    """Of every setting, also of those that have no label yet."""
    fields = [labelled(each) for each in api_settings().values() if kind == "node" or not each.setting.per_node]
    values = {**setting_fields.form_values({}, fields), "cluster": "", "name": ""}
    about: dict[str, Any] = {
        "waits": False,
        "notes": {},
        "placeholders": {},
        "suggestions": {},
        "owner_only": [],
        "is_owner": False,
    }
    about |= {"before": None if is_new else PRESS, "here_is": "", "etag": "", "base": "{}", "system": {}}
    about |= {"clusters": (PLANT,), "cluster": PLANT, "groups": setting_fields.group_fields(fields)}
    sheet = setting_fields.FormSheet(
        values, tuple(setting_fields.FieldError(each.name, "is wrong") for each in fields)
    )
    page = bytes(PageRenderer().show(f"{kind}_form", VISIT, sheet=sheet, values=values, **about).body).decode()
    for each in fields:
        assert page.count(f' id="{each.name}"') == page.count(f' id="{each.name}-wrong"') == 1
