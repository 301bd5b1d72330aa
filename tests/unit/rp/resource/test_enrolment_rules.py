"""Tests of the names that an enrolment gives to nodes."""

from __future__ import annotations

import pytest

from aks_flex_node.api.enrolments import MachineFacts
from aks_flex_rp.resource.enrolment_rules import NameInvalidError, node_name

FACTS = MachineFacts(hostname="Pump_7.Plant", serial_number="ABC 12/3")


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("{hostname}", "pump-7.plant"),
        ("edge-{serial}", "edge-abc-12-3"),
        ("edge-{number}", "edge-7"),
        ("edge-{number:04}-a", "edge-0007-a"),
    ],
)
def test_rule_makes_a_valid_node_name(rule: str, name: str) -> None:
    assert node_name(rule, FACTS, 7) == name


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{hostname}", "The machine sent no host name, which the rule {hostname} needs."),
        ("edge-{serial}", "The machine sent no serial number of its own, which the rule edge-{serial} needs."),
    ],
)
def test_missing_fact_is_named_with_the_rule(rule: str, message: str) -> None:
    with pytest.raises(NameInvalidError) as caught:
        node_name(rule, MachineFacts(serial_number="Default string"), 1)

    assert str(caught.value) == message
