from __future__ import annotations

from aks_flex_node.agent import paths
from aks_flex_node.agent.bootstrap.unbootstrap import AGENT_FILES, Unbootstrap
from aks_flex_node.agent.job_records.job_result import STAGE_UNIT
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.host.actions import RemoveTree, StartUnit, StopUnit
from tests.unit.agent.builders import DATA, empty_host, engine_on


def test_every_state_file_of_the_agent_is_removed() -> None:
    known = {value for name, value in vars(paths).items() if name.isupper() and isinstance(value, str)}
    below = {value for value in known if value.startswith(f"{paths.STATE_DIR}/")}
    assert below, "the constants have been renamed"
    assert below - set(AGENT_FILES) == set()


def test_running_download_is_stopped_before_its_files_are_removed() -> None:
    host = empty_host()
    host.apply(StartUnit(STAGE_UNIT))
    host.done.clear()
    Unbootstrap(engine_on(host), None, ProgressReporter()).run()
    assert host.done.index(StopUnit(STAGE_UNIT)) < host.done.index(RemoveTree(f"{DATA}/artifacts"))
