"""Preflight: is this machine fit to become a node? Questions alone; nothing here changes anything.

`situations` says what is known before the first question, `checks` is the list of all checks, `running` asks them all
at once, and `findings` is what comes out. The other modules hold the checks, by what they look at.
"""

from aks_flex_node.agent.preflight.findings import Check, Finding, Severity
from aks_flex_node.agent.preflight.running import run_all
from aks_flex_node.agent.preflight.situations import Situation, situation

__all__ = ["Check", "Finding", "Severity", "Situation", "run_all", "situation"]
