from __future__ import annotations

from aks_flex_node.agent import paths
from aks_flex_node.agent.bootstrap.unbootstrap import AGENT_FILES


def test_every_state_file_of_the_agent_is_removed() -> None:
    known = {value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}
    below = {value for value in known if value.startswith(f"{paths.STATE_DIR}/")}
    assert below, "the constants have been renamed"
    assert below - set(AGENT_FILES) == set()
