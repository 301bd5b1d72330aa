"""The threat model names tests that exist, and every actor."""

from __future__ import annotations

import re
from pathlib import Path

from aks_flex_node.agent.policy import WORDS
from aks_flex_node.settings.api import api_settings
from aks_flex_node.settings.setting import CONTRIBUTOR, NOTHING, REACHES
from aks_flex_rp.nodes.write_permissions import owner_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
TABLE = PAGE.partition("## Threat model")[2].partition("\n## ")[0]
ACTORS = (
    *("user of the machine", "other node", "reader", "contributor", "owner", "mirror", "network"),
    *("database administrator", "storage administrator", "cluster administrator", "root on the provider's host"),
)


def test_threat_model_names_every_actor() -> None:
    named = [line.split("|")[1].strip() for line in TABLE.splitlines() if line.startswith("| ")]

    assert [each for each in ACTORS if not any(name.startswith(each) for name in named)] == []


def test_threat_model_names_existing_tests() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)`", TABLE)

    assert len(named) > 15
    assert [each for each in named if not (ROOT / each).is_file()] == []


def reachable(actor: str) -> set[str]:
    """Returns the code in the cell of what an actor can reach."""
    [cell] = re.findall(rf"^\| {actor} \|(.*?)\|", TABLE, re.MULTILINE)
    return set(re.findall(r"`(.*?)`", cell))


def test_threat_model_says_what_each_role_can_set() -> None:
    settings = [each.setting for each in api_settings().values() if each.setting.who == CONTRIBUTOR]
    assert reachable("contributor") & {*REACHES} == {each.reaches for each in settings} - {NOTHING}
    assert reachable("owner") == {each.path for each in owner_settings()}


def test_page_has_the_words_of_the_policy_of_a_machine() -> None:
    policy = PAGE.partition("## Policy of a machine")[2].partition("\n## ")[0]
    words = [cell for cell in re.findall(r"^\| (`.*?) \|", policy, re.MULTILINE) if "path of" not in cell]
    assert set(re.findall(r"`(\w+)`", " ".join(words))) == {*WORDS}
