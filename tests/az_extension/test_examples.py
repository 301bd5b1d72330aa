"""Runs every example of the help and of the documents in a shell."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_lab.processes import run
from aks_flex_node.api.node_keys import KEY_HEADER, fingerprint
from tests.az_extension.harness import AUDIENCE, SiteFleet
from tests.az_extension.test_identities import VARIABLE
from tests.node_key_client import HeldKey
from tests.service.rp.api.bodies import client_of
from tests.service.rp.api.enrolling_machine import EnrollingMachine, PoolEnrolment
from tests.service.rp.api.fake_clusters import CLUSTER_VERSION
from tests.service.rp.api.simulated_fleet import BAD, BETTER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.az_extension.harness import Site
    from tests.az_extension.warm_az import WarmAz

HOME = Path(__file__).parents[2]
COMMANDS = HOME / "az-extension" / "azext_aks_flex_node" / "aaz" / "latest" / "aks" / "flex_node"
DOCUMENTS = (
    "docs/how-to/azure-cli.md",
    "docs/how-to/azure-cli-pools.md",
    "docs/how-to/azure-cli-provider.md",
    "docs/how-to/templates.md",
    "README.md",
)
# In place of az and of the programs that use its output: records the arguments that the shell passes.
STAND_IN = """#!/usr/bin/env python3
import json, sys
with open({record!r}, "a") as record:
    given = sys.stdin.read() if "-" in sys.argv else ""
    print(json.dumps([sys.argv[1:], given]), file=record)
print("https://answer")
"""


def of_help() -> Iterator[tuple[str, str]]:
    for file in sorted(COMMANDS.rglob("_[a-z]*.py")):
        text = re.sub(r"\\\n\s+", "", file.read_text())
        for title, said in re.findall(r":example: (.*)\n((?:        .*\n)+)", text):
            yield f"{file.parent.stem}/{file.stem}: {title}", "\n".join(map(str.strip, said.splitlines()))


def of_documents() -> Iterator[tuple[str, str]]:
    """Returns the commands between backticks, with … for the cluster, and lines that are commands."""
    for document in DOCUMENTS:
        text = re.sub(r"\\\n\s+", "", (HOME / document).read_text())
        lines = [line.strip() for line in text.splitlines() if "az aks flex-node " in line and "`" not in line]
        for said in (*re.findall(r"`(az aks flex-node [a-z-]+ …[^`]*)`", text), *lines):
            yield f"{document}: {said.replace('…', '...')}"[:100], said


EXAMPLES = {**dict(of_help()), **dict(of_documents())}


@pytest.fixture
def there(site: Site, name: str) -> str:
    """Creates a joined node with an identity that runs the desired versions and is Ready."""
    identity = {"method": "servicePrincipal", "servicePrincipal": {"clientId": client_of(name), "clientSecret": "x"}}
    made = site.admin.put(name, {"properties": {"azureAuth": identity, "continuousMonitoring": True}}).json
    ready = {"conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T10:00:00Z"}]}
    end_rollouts(site)
    assert site.admin.pool("PUT", "edge", body={"properties": {}}).status in {200, 201}
    report = {**ready, "appliedConfigVersion": made["properties"]["configVersion"]}
    assert site.admin.ask("POST", site.admin.path(name, "reportStatus"), report).status == 200
    return name


@pytest.fixture
def room(site: Site, tmp_path: Path) -> Path:
    """Returns a directory with the files that examples name."""
    (tmp_path / "ca.crt").write_text(Path(site.cloud.ca).read_text())
    for file, content in {
        "admin.key": site.service.service.settings.admin_key_file.read_text(),
        "secret": "another",
        "FILE": "another",
        "gates.yaml": "- {name: manager, approval: {}}",
    }.items():
        (tmp_path / file).touch(0o600)
        (tmp_path / file).write_text(content)
    for program in ("az", "ssh", "aks-flex-node"):
        (tmp_path / program).write_text(STAND_IN.format(record=str(tmp_path / f"{program}.record")))
        (tmp_path / program).chmod(0o755)
    return tmp_path


def with_enrolled_machine(site: Site, text: str) -> tuple[str, str]:
    """Returns the text with an enrolment and a machine that exist, and the name of its node."""
    waits = "enrolment" in text
    made = PoolEnrolment.of(site.admin, "edge", approval="manual" if waits else "automatic")
    machine = EnrollingMachine(f"example-{made.id}")
    assert made.enrol(machine).status == (202 if waits else 200)
    shown = fingerprint(machine.key.thumbprint)
    return text.replace("k7m2p9xq", made.id).replace("1a2b-3c4d-5e6f-7a8b", shown), machine.hostname


def delete_nodes_of_pool(site: Site) -> None:
    """Deletes the nodes that other examples left in the pool."""
    for node in site.admin.list().json["value"]:
        if node["properties"].get("poolName") == "edge":
            assert site.admin.delete(node["name"]).status == 200


def with_rollout(site: Site, text: str) -> str:
    """Returns the text with a pool whose roll-out waits, has failed or has succeeded, as the example expects."""
    fleet = SiteFleet(site.service, 1)
    fails, succeeds = "allow-revision" in text, "--succeeded" in text
    fleet.write(BAD if fails else BETTER)
    fleet.start("may", gates=[] if succeeds else [{"name": "manager", "approval": {}}])
    fleet.work_until("Reversed" if fails else "Succeeded" if succeeds else "Gates", name="may")
    for verb, before in {"resume": "pause", "delete": "abort"}.items():
        if f"rollout {verb}" in text:
            assert fleet.rollout("POST", "may", before).status == 200
    return re.sub(r"--(pool|name) edge\b", rf"--\1 {fleet.pool}", text)


def end_rollouts(site: Site) -> None:
    """Ends the roll-outs that other examples started."""
    for each in site.admin.pool("GET", "edge", "rollouts").json.get("value", ()):
        site.admin.pool("POST", "edge", "rollouts", each["name"], "abort")  # refused if it has ended
        assert site.admin.pool("DELETE", "edge", "rollouts", each["name"]).status == 200


def bind_key(site: Site, name: str) -> None:
    """Fetches the configuration of a node with a key, as its machine does."""
    url = str(site.admin.ask("POST", site.admin.path(name, "regenerateToken"), {}).json["configUrl"])
    path = url.partition("#")[0].removeprefix(site.service.connection.url)
    proof = {KEY_HEADER: HeldKey().url_proof(url)}
    assert site.service.connection.ask("GET", path, proof).status == 200


@pytest.mark.parametrize("example", EXAMPLES)
def test_documented_example_runs_as_printed(
    az: WarmAz, site: Site, there: str, room: Path, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{there}-new" if "flex-node create" in EXAMPLES[example] else there
    text = EXAMPLES[example].replace("…", "-g edge --cluster plant", 1)
    if re.search(r"pool (create|delete)", text):
        delete_nodes_of_pool(site)
    if "pool create" in text:
        assert site.admin.pool("DELETE", "edge").status == 200
    if re.search(r"enrolment|release", text):
        text, name = with_enrolled_machine(site, text)
    if "revoke-key" in text:
        bind_key(site, there)
    if re.search(r"rollout (?!create)|allow-revision", text):
        text = with_rollout(site, text)
    for pattern, instead in {
        r"my-rg": "edge",
        r"my-cluster": "plant",
        r"edge(-node)?-1": name,
        r"https://host:8443": site.service.connection.url,
        r"1\.36\.3": CLUSTER_VERSION,
        r"api://CLIENT-ID": AUDIENCE,
    }.items():
        text = re.sub(pattern, instead, text)
    monkeypatch.chdir(room)
    run("bash", "-euc", text, env={"PATH": f"{room}:/usr/bin:/bin"})
    for line in (room / "az.record").read_text().splitlines():
        words, given = json.loads(line)
        asked = [*words, *(["--yes"] if "delete" in words and "--yes" not in words else [])]
        files = [str(room / word) if (room / word).is_file() else word for word in asked]
        az.run(*files, input=given, env=VARIABLE)
