"""Tests of template expressions: values and error messages."""

from __future__ import annotations

import pytest

from aks_flex_lab.arm.deployments.expressions import (
    DEFERRED,
    DeploymentTarget,
    EvaluationScope,
    TemplateError,
    evaluate,
)

PLACE = DeploymentTarget("sub-1", "edge", "first")
KIND = "Microsoft.ContainerService/managedClusters/flexNodeConfig"
PARAMETERS = {"name": "Edge-1", "yes": True, "labels": {"site": "north"}, "names": ["a", "b"], "empty": ""}
SCOPE = EvaluationScope(PLACE, PARAMETERS, 0)

VALUES = {
    "[[not('an expression')]": "[not('an expression')]",
    "['it''s']": "it's",
    "[parameters('name')]": "Edge-1",
    "[parameters('labels').SITE]": "north",
    "[parameters('labels')['site']]": "north",
    "[parameters('names')[1]]": "b",
    "[parameters('names')[copyIndex()]]": "a",
    "[concat('a', 1)]": "a1",
    "[concat(parameters('names'), createArray('c'))]": ["a", "b", "c"],
    "[format('{0}/{1}', 'plant', parameters('name'))]": "plant/Edge-1",
    "[length(parameters('names'))]": 2,
    "[empty(parameters('empty'))]": True,
    "[if(parameters('yes'), 'one', parameters('missing'))]": "one",
    "[if(not(parameters('yes')), listConfigUrl('x', '1').configUrl, '')]": "",
    "[equals(1, parameters('yes'))]": False,
    "[equals(parameters('names'), createArray('a', 'b'))]": True,
    "[union(parameters('labels'), createObject('line', 1))]": {"site": "north", "line": 1},
    "[tryGet(parameters('labels'), 'line')]": None,
    "[coalesce(tryGet(parameters('labels'), 'line'), 'none')]": "none",
    f"[resourceId('{KIND}', 'plant', 'edge-1')]": (
        "/subscriptions/sub-1/resourceGroups/edge/providers/Microsoft.ContainerService/managedClusters/plant"
        "/flexNodeConfig/edge-1"
    ),
}

WRONG = {
    "[oops('x')]": "the function 'oops' is unknown",
    "[parameters('missing')]": "the template parameter 'missing' is not found",
    "[concat('a') 'b']": "is not valid",
    "[concat(]": "is not valid",
    "[concat('a', b ! c)]": "! is not expected there",
    "[a]": "its syntax is not supported",
    "[parameters('names')[7]]": "the element does not exist",
    "[parameters('labels').line]": "the property does not exist",
    "[copyIndex('loop')]": "the function 'copyIndex' is unknown, or the lab does not support it there",
    "[format('{3}', 'canary')]": "placeholders",
    "[union('canary', 'x')]": "all arguments must be",
    "[if('canary', 1, 2)]": "the condition is not a Boolean value",
    "[length(1)]": "its arguments are invalid",
    "[resourceId('A.B/c/d', 'e')]": "incorrect segment lengths",
    "[listConfigUrl('x', '1')]": "does not support it there",
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
    scope = EvaluationScope(PLACE, {"secret": "canary", "secrets": {"a": "canary"}})
    for text in (
        "[parameters('secrets')[parameters('secret')]]",
        "[union(parameters('secret'), parameters('secrets'))]",
        "[if(parameters('secret'), 1, 2)]",
        "[length(parameters('secret'), 1)]",
    ):
        with pytest.raises(TemplateError) as caught:
            evaluate(text, scope)
        assert "canary" not in str(caught.value)


def test_action_is_called_at_the_end_of_a_deployment() -> None:
    live = EvaluationScope(PLACE, PARAMETERS, call_action=lambda *asked: {"asked": asked})
    assert evaluate("[listConfigUrl('x', '1').asked]", live) == ("listConfigUrl", "x", "1")
    before = EvaluationScope(PLACE, PARAMETERS, call_action=lambda *_: DEFERRED)
    assert evaluate("[listConfigUrl('x', '1').configUrl[0]]", before) is DEFERRED
