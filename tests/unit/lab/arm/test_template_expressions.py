"""Tests of template expressions: values and error messages."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_lab.arm.deployments.evaluation import (
    DEFERRED,
    DeferredRuntime,
    DeploymentTarget,
    EvaluationScope,
    evaluate,
)
from aks_flex_lab.arm.deployments.template_errors import TemplateError

PLACE = DeploymentTarget("sub-1", "tenant-1", "edge", "westeurope", "first")
KIND = "Microsoft.ContainerService/managedClusters/flexNodeConfig"
SCOPE = EvaluationScope(
    PLACE,
    {"name": "Edge-1", "count": 3, "yes": True, "labels": {"site": "north"}, "names": ["a", "b"], "empty": ""},
    {
        "both": "[concat(parameters('name'), '-', variables('site'))]",
        "site": "[parameters('labels').site]",
        "copy": [{"name": "numbers", "count": 3, "input": "[add(copyIndex('numbers'), 1)]"}],
    },
)


class Known:
    """Simulated existing resources, for templates that reference them."""

    def reference(self, resource: str, version: str, *, full: bool) -> Any:
        return {"asked": [resource, version, full]}

    def act(self, action: str, resource: str, version: str, body: Any) -> Any:
        return {"did": [action, resource, version, body]}


LIVE = EvaluationScope(SCOPE.target, SCOPE.parameters, SCOPE.variables, Known())

VALUES = {
    "plain": "plain",
    "[[not('an expression')]": "[not('an expression')]",
    "['it''s']": "it's",
    "[parameters('name')]": "Edge-1",
    "[Parameters('NAME')]": "Edge-1",
    "[variables('both')]": "Edge-1-north",
    "[variables('numbers')]": [1, 2, 3],
    "[parameters('labels').SITE]": "north",
    "[parameters('labels')['site']]": "north",
    "[parameters('names')[1]]": "b",
    "[concat('a', 1, true())]": "a1True",
    "[concat(parameters('names'), createArray('c'))]": ["a", "b", "c"],
    "[format('{0}/{1}', 'plant', parameters('name'))]": "plant/Edge-1",
    "[format('edge-{0:D3} {{}}', 7)]": "edge-007 {}",
    "[padLeft(7, 3, '0')]": "007",
    "[length('four')]": 4,
    "[length(parameters('names'))]": 2,
    "[empty(parameters('empty'))]": True,
    "[empty(null())]": True,
    "[empty(parameters('labels'))]": False,
    "[if(parameters('yes'), 'one', parameters('missing'))]": "one",
    "[equals('a', 'A')]": False,
    "[equals(1, true())]": False,
    "[equals(parameters('names'), createArray('a', 'b'))]": True,
    "[not(false())]": True,
    "[and(true(), true(), false())]": False,
    "[or(false(), true())]": True,
    "[toLower('AbC')]": "abc",
    "[take('abcdef', 2)]": "ab",
    "[take(parameters('names'), 1)]": ["a"],
    "[union(createObject('a', createObject('x', 1)), createObject('a', createObject('y', 2)))]": {
        "a": {"x": 1, "y": 2}
    },
    "[union(createArray(1, 2), createArray(2, 3))]": [1, 2, 3],
    "[json('{\"a\": [1]}').a]": [1],
    "[string(parameters('labels'))]": '{"site":"north"}',
    "[int('12')]": 12,
    "[contains(parameters('labels'), 'Site')]": True,
    "[contains('abc', 'b')]": True,
    "[tryGet(parameters('labels'), 'line')]": None,
    "[coalesce(tryGet(parameters('labels'), 'line'), 'none')]": "none",
    "[resourceGroup().location]": "westeurope",
    "[subscription().subscriptionId]": "sub-1",
    "[deployment().name]": "first",
    f"[resourceId('{KIND}', 'plant', 'edge-1')]": (
        "/subscriptions/sub-1/resourceGroups/edge/providers/Microsoft.ContainerService/managedClusters/plant"
        "/flexNodeConfig/edge-1"
    ),
    "[resourceId('other', 'A.B/c', 'd')]": "/subscriptions/sub-1/resourceGroups/other/providers/A.B/c/d",
    "[resourceId('sub-2', 'other', 'A.B/c', 'd')]": "/subscriptions/sub-2/resourceGroups/other/providers/A.B/c/d",
}

WRONG = {
    "[oops('x')]": "the function 'oops' is unknown",
    "[parameters('missing')]": "the template parameter 'missing' is not found",
    "[variables('missing')]": "the template variable 'missing' is not found",
    "[concat('a',)]": "')' is not expected there",
    "[concat('a') 'b']": "''b'' is not expected there",
    "[concat(]": "it ends too early",
    "[a ! b]": "is not valid at '! b'",
    "[parameters('names')[7]]": "the element does not exist",
    "[parameters('labels').line]": "the property does not exist",
    "[copyIndex()]": "outside of that copy loop",
    "[int('canary')]": "it is not a number",
    "[json('canary')]": "it is not JSON",
    "[format('{3}', 'canary')]": "placeholders",
    "[union('canary', 'x')]": "all arguments must be",
    "[if('canary', 1, 2)]": "the condition is not a Boolean value",
    "[length(1)]": "its arguments are invalid",
    "[equals(1)]": "its arguments are invalid",
    "[resourceId('plant')]": "the resource type is missing",
    "[resourceId('A.B/c/d', 'e')]": "incorrect segment lengths",
    "[reference('x')]": "not expected at this location",
    "[listConfigUrl('x', '1')]": "not expected at this location",
}


@pytest.mark.parametrize("text", VALUES)
def test_expression_evaluates_to_expected_value_and_type(text: str) -> None:
    found = evaluate(text, SCOPE)
    assert found == VALUES[text]
    assert type(found) is type(VALUES[text])


@pytest.mark.parametrize("text", WRONG)
def test_invalid_expression_error_quotes_the_expression(text: str) -> None:
    with pytest.raises(TemplateError) as caught:
        evaluate(text, SCOPE)
    assert WRONG[text] in str(caught.value)
    assert text in str(caught.value) or "segment lengths" in str(caught.value)


def test_expression_error_contains_no_secret_values() -> None:
    scope = EvaluationScope(PLACE, {"secret": "canary", "secrets": {"a": "canary"}}, {})
    for text in (
        "[int(parameters('secret'))]",
        "[json(parameters('secret'))]",
        "[parameters('secrets')[parameters('secret')]]",
        "[union(parameters('secret'), parameters('secrets'))]",
        "[if(parameters('secret'), 1, 2)]",
        "[add(parameters('secret'), 1)]",
    ):
        with pytest.raises(TemplateError) as caught:
            evaluate(text, scope)
        assert "canary" not in str(caught.value)


def test_unique_string_is_deterministic_and_depends_on_arguments() -> None:
    first = evaluate("[uniqueString('a', 'b')]", SCOPE)
    assert first == evaluate("[uniqueString('a', 'b')]", SCOPE)
    assert first != evaluate("[uniqueString('ab')]", SCOPE)
    assert len(first) == 13


def test_reference_and_list_functions_query_live_resources() -> None:
    assert evaluate("[reference('x', '1').asked]", LIVE) == ["x", "1", False]
    assert evaluate("[reference('x', '1', 'Full').asked]", LIVE) == ["x", "1", True]
    assert evaluate("[listConfigUrl('x', '1').did]", LIVE) == ["listConfigUrl", "x", "1", None]
    assert evaluate("[listKeys('x', '1', createObject('a', 2)).did[3]]", LIVE) == {"a": 2}


def test_if_does_not_evaluate_branch_not_taken() -> None:
    assert evaluate("[if(false(), listConfigUrl('x', '1').configUrl, '')]", SCOPE) == ""


@pytest.mark.parametrize(
    "text",
    [
        "[reference('x').a.b[0]]",
        "[concat('a', listConfigUrl('x', '1').configUrl)]",
        "[if(equals(reference('x').a, 1), 1, 2)]",
    ],
)
def test_runtime_functions_are_deferred_before_deployment(text: str) -> None:
    assert evaluate(text, EvaluationScope(PLACE, {}, {}, DeferredRuntime())) is DEFERRED


def test_property_copy_has_its_own_index() -> None:
    wanted = {
        "kept": 1,
        "copy": [
            {"name": "ports", "count": 2, "input": {"at": "[add(8080, copyIndex('ports'))]", "of": "[copyIndex()]"}}
        ],
    }
    found = evaluate(wanted, SCOPE.at("nodes", 5, own=True))
    assert found == {"kept": 1, "ports": [{"at": 8080, "of": 5}, {"at": 8081, "of": 5}]}


def test_copy_index_applies_offset() -> None:
    inside = SCOPE.at("nodes", 5, own=True)
    assert [evaluate(text, inside) for text in ("[copyIndex(1)]", "[copyIndex('nodes', 10)]")] == [6, 15]
