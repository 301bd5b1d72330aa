"""Breaks one promise after the other in a copy of the code: its tests must fail: `python -m scripts.mutants`.

Arguments select promises. A mutant that survives means that its promise has lost its guard. All tests named here are
in `make test`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTEST = str(ROOT / ".venv/bin/pytest")
NO_TESTS_FAILED, TESTS_FAILED = 0, 1  # exit codes of pytest


@dataclass(frozen=True)
class Mutant:
    """One change of the code that breaks a promise."""

    promise: str
    file: str
    code: str  # stands once in the file
    broken: str
    tests: str


MUTANTS = (
    Mutant(
        "a file is replaced atomically",
        "src/aks_flex_node/atomic_file.py",
        "        new.replace(path)\n",
        "        path.write_bytes(content)\n",
        "tests/unit/test_atomic_file.py",
    ),
    Mutant(
        "a policy that others can change forbids everything",
        "src/aks_flex_node/agent/policy.py",
        'return strictest("can be changed by other users than root")',
        "return Policy()",
        "tests/unit/agent/test_policy.py",
    ),
    Mutant(
        "pods are drained before an update disturbs them",
        "src/aks_flex_node/agent/jobs/update/job.py",
        "        if difference.needs_drain:\n            self.operations.drain(",
        "        if False:\n            self.operations.drain(",
        "tests/unit/agent/jobs/update",
    ),
    Mutant(
        "an update that fails is rolled back",
        "src/aks_flex_node/agent/jobs/update/job.py",
        "return self._roll_back(current, journal.at(UpdateStage.ROLLING_BACK, cause=_rollback_cause(error)))",
        "return _unconfirmed(stored, error)",
        "tests/unit/agent/jobs/update",
    ),
    Mutant(
        "an update waits for the maintenance window",
        "src/aks_flex_node/agent/jobs/update/admission.py",
        "    if opens is None:\n        return None\n    upgrades",
        "    if True:\n        return None\n    upgrades",
        "tests/unit/agent/jobs/update",
    ),
    Mutant(
        "the update continues after a power cut",
        "src/aks_flex_node/agent/jobs/update/job.py",
        "            update_journal.JOURNAL.write(self.operations.host, journal)\n            return self._apply(",
        "            return self._apply(",
        "tests/unit/agent/jobs/update",
    ),
    Mutant(
        "a secret in the output of a program is masked",
        "src/aks_flex_node/redaction.py",
        "    while (masked := _mask(text, patterns)) != text:",
        "    while (masked := text) != text:",
        "tests/unit/agent/test_redaction.py",
    ),
    Mutant(
        "a kubelet gets no certificate of another node",
        "src/aks_flex_rp/clusters/csr_policy.py",
        "    if csr.common_names != (NODE_USER_PREFIX + node,):",
        "    if len(csr.common_names) != 1:",
        "tests/unit/rp/clusters/test_csr_policy.py",
    ),
    Mutant(
        "a row that was changed in the database is refused",
        "src/aks_flex_rp/crypto/record_codes.py",
        "return CodeState.VALID if is_right else CodeState.WRONG",
        "return CodeState.VALID",
        "tests/service/rp/store/test_record_authentication.py",
    ),
    Mutant(
        "a roll-out stops when a node of its wave fails",
        "src/aks_flex_rp/rollouts/engine.py",
        "if report.desired == revision and report.failure:",
        "if False:",
        "tests/unit/rp/rollouts/test_engine_failures.py",
    ),
    Mutant(
        "a damaged ledger removes nothing outside of what the agent owns",
        "src/aks_flex_node/agent/reconcile/ledger.py",
        'is_absolute = name.startswith("/") and ".." not in name.split("/") and "\\0" not in name',
        "is_absolute = True",
        "tests/unit/agent/reconcile/test_ledger.py",
    ),
    Mutant(
        "a revoked node key is refused at the next poll",
        "src/aks_flex_rp/api/poll_handler.py",
        "own = caller.node == node_ref and caller.id == poll_state.keys.current",
        "own = caller.node == node_ref",
        "tests/service/rp/api/test_node_keys.py",
    ),
)


def run_tests(tree: Path, tests: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (PYTEST, "-q", "-x", "-p", "no:cacheprovider", "-m", "not full and not long", tests)
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, check=False).returncode


def is_noticed(tree: Path, mutant: Mutant) -> bool:
    """Returns whether the tests pass, and fail with the mutant."""
    file = tree / mutant.file
    text = file.read_text()
    if text.count(mutant.code) != 1:
        sys.exit(f"mutants.py: {mutant.file} must contain this code once: {mutant.code.strip()}")
    if run_tests(tree, mutant.tests) != NO_TESTS_FAILED:
        sys.exit(f"mutants.py: {mutant.tests} fails without any mutant.")
    file.write_text(text.replace(mutant.code, mutant.broken))
    try:
        return run_tests(tree, mutant.tests) == TESTS_FAILED
    finally:
        file.write_text(text)


def copy_checkout(target: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def main() -> int:
    chosen = [mutant for mutant in MUTANTS if not sys.argv[1:] or mutant.promise in sys.argv[1:]]
    if not chosen:
        print(
            "mutants.py: no such promise. Known: " + "; ".join(mutant.promise for mutant in MUTANTS), file=sys.stderr
        )
        return 2
    survived = 0
    with tempfile.TemporaryDirectory() as directory:
        copy_checkout(Path(directory))
        for mutant in chosen:
            noticed = is_noticed(Path(directory), mutant)
            survived += not noticed
            print(f"{'noticed ' if noticed else 'SURVIVED'}  {mutant.promise}  ({mutant.tests})", flush=True)
    print(f"mutants: {'FAILED' if survived else 'PASSED'}: {len(chosen) - survived} of {len(chosen)} noticed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
