"""Preflight checks: verify that this machine can become a node. Read-only.

`check` defines checks, findings and the context of checks. `registry` lists all checks and runs them concurrently.
The `*_checks` modules contain the checks by subject.
"""

from aks_flex_node.agent.preflight.check import Check, CheckFinding, PreflightContext, Severity, build_context
from aks_flex_node.agent.preflight.registry import run_checks

__all__ = ["Check", "CheckFinding", "PreflightContext", "Severity", "build_context", "run_checks"]
