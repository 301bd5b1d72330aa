"""Preflight checks: is this machine fit to become a node? Read-only.

`check` defines checks, findings and the context that checks see, `registry` lists all checks, `runner` runs them
concurrently. The `*_checks` modules hold the checks by subject.
"""

from aks_flex_node.agent.preflight.check import Check, CheckFinding, PreflightContext, Severity, build_context
from aks_flex_node.agent.preflight.registry import run_checks

__all__ = ["Check", "CheckFinding", "PreflightContext", "Severity", "build_context", "run_checks"]
