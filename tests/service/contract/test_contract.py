"""Checks of the contract: the swagger matches its source, and every linter finding is explained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from aks_flex_lab.processes import CommandResult, run

ROOT = Path(__file__).parents[3]
SWAGGER = "api/swagger/flexnode.json"
FINDINGS = "api/lint-findings.json"
COLD = 600  # seconds: Node.js and its packages are installed on the first run


def contract(root: Path, verb: str) -> CommandResult:
    return run(root / "scripts" / "contract", verb, check=False, timeout=COLD)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "api", tmp_path / "api")
    (tmp_path / "scripts").mkdir()
    for script in ("contract", "npm.sh"):
        shutil.copy2(ROOT / "scripts" / script, tmp_path / "scripts")
    return tmp_path


def test_committed_swagger_matches_compiled_source() -> None:
    said = contract(ROOT, "check")

    assert said.code == 0, said.out + said.err


@pytest.mark.long
def test_manually_edited_swagger_is_rejected_and_rebuilt(copy: Path) -> None:
    swagger = copy / SWAGGER
    compiled = swagger.read_text()
    swagger.write_text(compiled.replace('"maximum": 1024', '"maximum": 1025'))

    said = contract(copy, "check")

    assert said.code == 1
    assert '+          "maximum": 1024' in said.out
    assert "Run: scripts/contract build" in said.err
    assert contract(copy, "build").code == 0
    assert swagger.read_text() == compiled


def test_contract_lint_passes() -> None:
    said = contract(ROOT, "lint")

    assert said.code == 0, said.out + said.err


@pytest.mark.long
def test_contract_lint_rejects_new_and_obsolete_findings(copy: Path) -> None:
    findings = json.loads((copy / FINDINGS).read_text())
    del findings["DeleteResponseBodyEmpty"]
    findings["GuidUsage"] = {"definitions/Nothing": "No longer there."}
    (copy / FINDINGS).write_text(json.dumps(findings))

    said = contract(copy, "lint")

    assert said.code == 1
    assert "new error: DeleteResponseBodyEmpty at FlexNodeConfigs_Delete/responses/200/schema" in said.err
    assert "no longer found: GuidUsage at definitions/Nothing" in said.err


@pytest.mark.long
def test_contract_lint_rejects_example_that_violates_schema(copy: Path) -> None:
    (example,) = copy.glob("api/examples/*/FlexNodeConfigs_Update.json")
    example.write_text(example.read_text().replace('"maxPods": 50', '"maxPods": "fifty"'))

    said = contract(copy, "lint")

    assert said.code == 1
    assert "Expected type integer but found type string" in said.err
