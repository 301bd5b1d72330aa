"""A secret of the configuration is only in the files that need it, and never in a process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aks_flex_lab import node_agent
from tests.agents import flex

if TYPE_CHECKING:
    from aks_flex_lab.lab import Lab
    from aks_flex_lab.machines.machine import EdgeMachine

# Searches every process until it is stopped; prints where it found the secret.
SPY = """
import os, sys, time
secret, seen, end = sys.argv[1][::-1].encode(), set(), time.time() + 120
while not os.path.exists("/run/spy-ends") and time.time() < end:
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            for kind in ("cmdline", "environ"):
                try:
                    text = open(f"/proc/{pid}/{kind}", "rb").read()
                except OSError:
                    continue
                if secret in text:
                    seen.add(f"{kind} of {open(f'/proc/{pid}/comm').read().strip()}")
print("\\n".join(sorted(seen)))
"""
# Prints every file that contains the secret, with its mode.
SEARCH = """
import os, sys
secret = sys.argv[1][::-1].encode()
for top, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(top, name) not in ("/proc", "/sys", "/dev")]
    for name in files:
        path = os.path.join(top, name)
        if os.path.islink(path) or not os.path.isfile(path):
            continue
        with open(path, "rb") as file:
            data = file.read()
        if secret in data:
            print(f"{os.stat(path).st_mode & 0o777:04o} {path}")
"""


def test_bootstrap_token_is_only_in_two_root_only_files(lab: Lab, machine: EdgeMachine) -> None:
    document = node_agent.configuration(lab, changes={"agent": {"logLevel": "debug"}})
    secret = str(document["azure"]["bootstrapToken"]["token"]).partition(".")[2]
    node_agent.write_configuration(machine, document)
    backwards = secret[::-1]  # so that the search does not find itself
    machine.run("sh", "-c", "rm -f /run/spy-ends; cat >/run/spy.py", input=SPY)
    machine.run(
        "systemd-run", "--unit=spy", "-p", "StandardOutput=file:/run/spied", "python3", "/run/spy.py", backwards
    )

    said = flex(machine, "bootstrap")
    shown = [flex(machine, *words) for words in (("config", "show"), ("status",), ("plan",), ("status", "--json"))]
    flex(machine, "support-bundle", "--output", "/root/bundle.tar.gz")
    machine.run("touch", "/run/spy-ends")
    machine.run("sh", "-c", "while systemctl is-active -q spy; do sleep 0.1; done", timeout=120)

    assert machine.run("cat", "/run/spied").out.strip() == ""
    assert not any(secret in text for one in (said, *shown) for text in (one.out, one.err))
    unpacked = machine.run("tar", "-xzOf", "/root/bundle.tar.gz").out
    assert "aks-flex-node" in unpacked
    assert secret not in unpacked
    assert secret not in machine.run("journalctl", "--no-pager", "-o", "json").out
    found = machine.run("python3", "-c", SEARCH, backwards).out.splitlines()
    assert sorted(found) == ["0600 /etc/aks-flex-node/config.json", "0600 /var/lib/kubelet/bootstrap-kubeconfig"]
    machine.run("rm", "/root/bundle.tar.gz")


def test_support_bundle_contains_config_ledger_logs_and_status(lab: Lab, machine: EdgeMachine) -> None:
    node_agent.write_configuration(machine, node_agent.configuration(lab))
    flex(machine, "bootstrap")
    flex(machine, "support-bundle", "--output", "/root/bundle.tar.gz")

    names = machine.run("tar", "-tzf", "/root/bundle.tar.gz").out.split()
    status = json.loads(machine.run("tar", "-xzOf", "/root/bundle.tar.gz", "aks-flex-node/status.json").out)
    mode = machine.run("stat", "-c", "%a", "/root/bundle.tar.gz").out.strip()
    machine.run("rm", "/root/bundle.tar.gz")

    for name in ("config.json", "ledger.json", "agent.log", "journals/kubelet.txt", "network/routes.txt"):
        assert f"aks-flex-node/{name}" in names
    assert status["node"]["status"] == "Ready"
    assert mode == "600"
