"""Tests of the removal of unused program versions; linked and configured versions are kept."""

from __future__ import annotations

from aks_flex_node.agent.program_inventory import remove_unused
from aks_flex_node.agent.reconcile.ledger import OwnedResources
from aks_flex_node.host.actions import MakeLink
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import config_of, engine_on, manifest

HOME = "/opt/aks-flex-node"


def test_remove_unused_deletes_only_owned_unreferenced_programs() -> None:
    old, used, wanted = (f"{HOME}/kubernetes/{version}" for version in ("1.34.2", "1.34.3", "1.34.4"))
    foreign = f"{HOME}/kubernetes/1.30.0"
    files = {f"{place}/.manifest.json": manifest({"bin/kubelet": b"12345"}) for place in (old, used, wanted, foreign)}
    host = RecordedHost(files)
    host.apply(MakeLink("/usr/local/bin/kubelet", f"{used}/bin/kubelet"))
    engine = engine_on(host, config_of())
    engine.ledger.components["kubernetes"] = OwnedResources(
        paths={place: {"kind": "program", "original": None} for place in (old, used, wanted)}
        | {"/usr/local/bin/kubelet": {"kind": "link", "original": None}}
    )

    assert remove_unused(engine) == {old: 5}
    assert host.list_dir(f"{HOME}/kubernetes") == ("1.30.0", "1.34.3", "1.34.4")
    assert set(engine_on(host).ledger.owned("kubernetes").paths) == {used, wanted, "/usr/local/bin/kubelet"}
    assert remove_unused(engine) == {}
