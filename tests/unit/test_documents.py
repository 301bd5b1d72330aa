"""Checks that the documents match the code: error catalogs, links, make targets, requirements."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import yaml

from aks_flex_lab.host_requirements import REQUIRED_PROGRAMS
from aks_flex_node.agent.provider.poll_result import ProviderState
from aks_flex_node.error_catalog import load_catalog
from aks_flex_rp.notify.notification_settings import NodeEventKind
from aks_flex_rp.store.model import AuditAction

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
REFERENCE = runpy.run_path(str(ROOT / "scripts/error_reference.py"))


def test_error_reference_is_made_from_the_catalogues() -> None:
    catalogs = {package: load_catalog(package) for package in REFERENCE["PACKAGES"]}

    assert (ROOT / "docs/reference/errors.md").read_text() == REFERENCE["page_text"](catalogs)
    assert (ROOT / "docs/reference/names.md").read_text() == REFERENCE["names_text"](catalogs)


def test_every_provider_state_event_and_audit_action_is_in_the_catalogue() -> None:
    catalog = yaml.safe_load((ROOT / "src/aks_flex_node/conditions.yaml").read_text())

    assert {each.value for each in ProviderState} <= set(catalog["states"])
    assert {each.value for each in NodeEventKind} == set(catalog["events"])
    assert {each.value for each in AuditAction} == set(catalog["audit"])


def test_relative_links_between_documents_resolve() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_setup_installs_every_program_required_by_lab() -> None:
    packages = {line for line in (ROOT / "scripts/packages").read_text().splitlines() if not line.startswith("#")}

    assert set(REQUIRED_PROGRAMS.values()) <= packages


def test_makefile_has_all_documented_targets() -> None:
    makefile = (ROOT / "Makefile").read_text()

    for target in ("help", "setup", "try", "test", "test-unit", "test-long", "lint", "bench", "clean"):
        assert re.search(rf"^{target}:.*## \w", makefile, re.MULTILINE), target


def test_requirements_are_pinned_by_hash_and_contain_no_urls() -> None:
    for file in (ROOT / "requirements").glob("*.txt"):
        text = file.read_text()
        pins = re.findall(r"^[a-z0-9_.-]+(?:\[[a-z,]+\])?==", text, re.MULTILINE | re.IGNORECASE)

        assert pins
        assert len(pins) <= text.count("--hash=sha256:")
        assert "://" not in text


def test_names_page_lists_the_metrics_of_both_programs() -> None:
    rows = dict(REFERENCE["metric_rows"]())

    expected = {"joins_total", "config_bundles_total", "notifications_total", "nodes", "requests_total", "held_polls"}
    assert {f"`aks_flex_rp_{name}`" for name in expected} <= set(rows)
    assert "`aks_flex_node_provider_state`" in rows
