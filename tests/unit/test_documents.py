"""Checks that documents and package lists match the code."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from aks_flex_lab.host_requirements import REQUIRED_PROGRAMS
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.store.model import AuditAction

ROOT = Path(__file__).parents[2]


def test_every_provider_state_event_and_audit_action_is_in_the_catalogue() -> None:
    catalog = yaml.safe_load((ROOT / "src/aks_flex_node/conditions.yaml").read_text())

    assert {each.value for each in ProviderState} <= set(catalog["states"])
    assert {each.value for each in NodeEventKind} == set(catalog["events"])
    assert {each.value for each in AuditAction} == set(catalog["audit"])


def test_setup_installs_every_program_required_by_lab() -> None:
    packages = {line for line in (ROOT / "scripts/packages").read_text().splitlines() if not line.startswith("#")}

    assert set(REQUIRED_PROGRAMS.values()) <= packages


def test_makefile_has_all_documented_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in ("help", "setup", "try", "test", "test-unit", "test-long", "lint", "bench", "clean"):
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target
