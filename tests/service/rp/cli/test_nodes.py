"""Tests of `aks-flex-rp node …` with a real service on this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.api.node_changes import NodeOptions
from aks_flex_node.api.node_keys import fingerprint
from aks_flex_node.errors import ConfigError
from aks_flex_rp.api_client import Resource
from aks_flex_rp.cli.command_context import ServiceOptions
from aks_flex_rp.cli.node_write_commands import update_node
from tests.node_key_client import HeldKey
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.keyed_nodes import ONE, observe
from tests.service.rp.cli.cli_harness import Person

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.service.rp.api.service_harness import Running

CLIENT = "11111111-2222-3333-4444-555555555555"
CANARY = "canary-8d3f-secret"
WRAPPED = {"AKS_FLEX_RP_COMMAND": "aks-flex-lab rp"}


def test_versions_prints_the_table_of_tested_versions(person: Person) -> None:
    head, newest, *_ = person.does("versions").out.splitlines()

    assert head.split() == ["KUBERNETES", "CONTAINERD", "RUNC", "CNI", "NPD", "TESTS"]
    assert newest.split() == ["1.36", "2.4.2", "1.5.2", "1.9.1", "1.34.0", "every", "change"]
    table = person.does("versions --json").json
    assert [row["kubernetes"] for row in table["tested"]] == ["1.36", "1.35", "1.34", "1.33", "1.32", "1.31"]
    assert table["alsoTested"]["containerd"] == ["1.7.29"]


def test_untested_version_is_warned_about_by_create_update_and_show(person: Person) -> None:
    said = "runc 1.1.12 is not in the table of tested versions (1.4, 1.5)."
    on_node = "--cluster plant --name edge-1"

    made = person.does(f"node create {on_node} --runc-version 1.1.12 --json")
    assert f"warning: {said}" in made.err
    assert made.properties["config"]["runc"] == {"version": "1.1.12"}
    assert f"warning: {said}" in person.does(f"node update {on_node} --label a=b").err
    assert said in person.does(f"node show {on_node}").out
    assert "warning" not in person.does(f"node update {on_node} --runc-version 1.5.2").err
    joined = person.does("node create --cluster plant --name edge-2 --runc-version 1.1.12 --join-command")
    assert f"warning: {said}" in joined.err


def test_cluster_add_refuses_unencrypted_server_url(person: Person) -> None:
    refused = person.types(f"cluster add {PLANT} --server http://api.example")
    assert refused.code == 2
    assert "server-url-invalid" in refused.err


def test_join_command_is_only_output_on_stdout(person: Person) -> None:
    person.does("node create --cluster plant --name edge-1")

    done = person.does("node join-command --cluster plant --name edge-1")
    [line] = done.out.splitlines()
    assert line.startswith("echo 'https://127.0.0.1:")
    assert "#ca=sha256:" in line
    assert line.endswith("' | aks-flex-node agent --config-url-file -")
    assert "Valid until" in done.err


def test_node_update_changes_only_given_options(person: Person) -> None:
    settings = "--label site=north --label rack=7 --taint edge=yes:NoSchedule --max-pods 50"
    person.does(f"node create --cluster plant --name edge-1 {settings}")

    person.does("node update --cluster plant --name edge-1 --label rack- --drift-policy log")
    node = person.does("node show --cluster plant --name edge-1 --json").properties["nodeConfig"]
    assert node == {
        "labels": {"site": "north"},
        "taints": [{"key": "edge", "value": "yes", "effect": "NoSchedule"}],
        "maxPods": 50,
        "driftPolicy": "log",
    }


def test_options_reach_the_properties_and_are_taken_back(person: Person, tmp_path: Path) -> None:
    (tmp_path / "kubelet.yaml").write_text("podPidsLimit: 100\n")
    words = (
        "--window-start 22:00 --window-day saturday --window-minutes 90 --window-time-zone Europe/Berlin --no-drain "
        f"--drain-timeout 60 --health-timeout 120 --kubelet-config {tmp_path}/kubelet.yaml "
        "--kubelet-setting kubeReserved.cpu=100m --vpn --server-url https://10.77.0.4 --agent-version 0.3.0 --pause"
    )
    person.does("node create --cluster plant --name edge-1", *words.split())
    on_edge = "node update --cluster plant --name edge-1 --json"

    shown = person.does("node show --cluster plant --name edge-1 --json").properties["nodeConfig"]
    without = "--window-start '' --kubelet-setting podPidsLimit- --no-vpn --server-url '' --allow-downgrade"
    changed = person.does(f"{on_edge} {without} --agent-version ''").properties
    refused = person.types(f"{on_edge} --kubelet-setting nodeIP=1.2.3.4")

    assert shown == {
        "kubelet": {"podPidsLimit": 100, "kubeReserved": {"cpu": "100m"}, "serverURL": "https://10.77.0.4"},
        "vpn": {"enabled": True},
        "updatePolicy": {
            "paused": True,
            "drain": False,
            "drainTimeoutSeconds": 60,
            "healthTimeoutSeconds": 120,
            "maintenanceWindow": {
                "start": "22:00",
                "durationMinutes": 90,
                "timeZone": "Europe/Berlin",
                "days": ["Saturday"],
            },
        },
    }
    assert "maintenanceWindow" not in changed["nodeConfig"]["updatePolicy"]
    assert changed["config"]["updatePolicy"].items() >= {"paused": True, "allowDowngrade": True}.items()
    assert changed["nodeConfig"]["kubelet"] == {"kubeReserved": {"cpu": "100m"}}
    assert (changed["config"]["azure"]["vpn"], "agent" in changed["config"]) == ({"enabled": False}, False)
    assert (refused.code, "kubelet-setting-invalid" in refused.err) == (2, True)


def test_printed_join_command_of_node_create_works(person: Person) -> None:
    created = person.does(
        f"node create --cluster plant --name edge-1 --state {person.state}", env={"AKS_FLEX_RP_STATE": ""}
    )
    wrapped = person.does("node update --cluster plant --name edge-1 --max-pods 50", env=WRAPPED)

    [command] = re.findall(r"`aks-flex-rp (.*?)`", created.err)
    assert person.does(command, env={"AKS_FLEX_RP_STATE": ""}).out.startswith("echo 'https://")
    assert "`aks-flex-lab rp node join-command --name edge-1 --cluster plant`" in wrapped.err


def test_usage_line_shows_name_of_wrapper(person: Person) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "aks_flex_rp", "node", "show", "--help"],
        env={**os.environ, **WRAPPED},
        capture_output=True,
        text=True,
        check=True,
    )

    assert run.stdout.split("Usage: ")[1].startswith("aks-flex-lab rp node show")


def test_node_delete_tells_what_happens_to_the_machine(service: Running, person: Person) -> None:
    for name in ("edge-1", "edge-2"):
        person.does(f"node create --cluster plant --name {name} --no-monitor")
    failed = {"joinState": "Failed", "joinFailure": "No route."}
    api = service.admin.at(PLANT)
    assert api.ask("POST", api.path("edge-2", "reportStatus"), failed).status == 200

    unused = person.does("node delete --cluster plant --name edge-1 --yes")
    used = person.does("node delete --cluster plant --name edge-2 --yes")
    assert unused.err == ""
    assert "Run `aks-flex-node unbootstrap` on it." in used.err


def test_node_create_makes_a_managed_node_unless_told_otherwise(person: Person) -> None:
    made = person.does("node create --cluster plant --name edge-1 --json").json
    other = person.does("node create --cluster plant --name edge-2 --no-monitor --json").json
    assert made["properties"]["continuousMonitoring"] is True
    assert made["properties"]["azureAuth"]["method"] == "none"
    assert other["properties"]["continuousMonitoring"] is False


def test_node_revoke_key_names_the_key_and_the_remedy(service: Running, person: Person) -> None:
    url = person.does("node create --cluster plant --name edge-1 --join-command --json").json["configUrl"]
    key = HeldKey()
    assert service.admin.fetch(url, key=key).status == 200

    revoked = person.does("node revoke-key --cluster plant --name edge-1")

    assert revoked.out == f"Key {fingerprint(key.thumbprint)} of edge-1 revoked.\n"
    assert "aks-flex-rp node join-command --name edge-1" in revoked.err
    assert "NodeKeyRevoked" in person.does("node show --cluster plant --name edge-1 --json").out


def test_node_update_without_changes_keeps_etag(person: Person) -> None:
    before = person.does("node create --cluster plant --name edge-1 --max-pods 50 --json").json

    after = person.does("node update --cluster plant --name edge-1 --max-pods 50 --json").json
    assert after["etag"] == before["etag"]
    for words in ("", "--label site-", "--taint a:NoSchedule-"):
        assert person.does(f"node update --cluster plant --name edge-1 {words}").out == "No changes.\n"


def test_same_file_creates_and_updates_a_node_alike(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("nodeConfig: {labels: {site: south}}\n")
    person.does(f"node create --cluster plant --name edge-1 --file {file}")
    update = f"node update --cluster plant --name edge-1 --file {file}"
    assert person.does(f"{update} --json").properties["continuousMonitoring"] is True

    person.does("node update --cluster plant --name edge-1 --unset continuousMonitoring")
    shown = person.does("node show --cluster plant --name edge-1 --json")
    assert "continuousMonitoring" not in shown.properties
    file.write_text(shown.out)
    assert person.does(update).out == "No changes.\n"  # what `node show` prints is complete


def test_node_update_file_replaces_config_and_options_override_file(person: Person, tmp_path: Path) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("properties:\n  nodeConfig:\n    maxPods: 30\n    labels: {site: south}\n")
    person.does("node create --cluster plant --name edge-1 --label rack=7")

    person.does(f"node update --cluster plant --name edge-1 --file {file} --max-pods 40")
    node = person.does("node show --cluster plant --name edge-1 --json").properties["nodeConfig"]
    assert node == {"maxPods": 40, "labels": {"site": "south"}}


def test_node_create_reports_every_validation_error_with_its_path(person: Person) -> None:
    wrong = ("--max-pods", "0", "--label", "bad key=x", "--kubernetes-version", "9.99.0")

    done = person.types("node create --cluster plant --name edge-1", *wrong)
    assert done.code == 5
    assert "InvalidRequestContent" in done.err
    for place in ("nodeConfig.maxPods", "nodeConfig.labels", "versions.kubernetes"):
        assert [line for line in done.err.splitlines() if line.startswith("  ") and place in line], done.err


def test_client_secret_is_shown_only_by_credentials_command(person: Person, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(f"{CANARY}\n")
    secret.chmod(0o600)
    how = (
        "--auth-method",
        "servicePrincipal",
        "--client-id",
        CLIENT,
        "--client-secret-file",
        str(secret),
        "--monitor",
    )

    created = person.does("node create --cluster plant --name edge-1 --json", *how)
    shown = person.does("node show --cluster plant --name edge-1 --json")
    assert CANARY not in created.out + created.err + shown.out
    assert shown.properties["continuousMonitoring"] is True
    told = person.does("node credentials --cluster plant --name edge-1")
    assert f"clientSecret  {CANARY}" in told.out


def test_node_list_filters_by_label_readiness_and_version(person: Person) -> None:
    for number in range(3):
        person.does(f"node create --cluster plant --name edge-{number} --label site={number}")

    everything = person.does("node list --cluster plant")
    assert everything.out.splitlines()[0].split() == ["NAME", "READY", "JOIN", "VERSION", "LAST", "SEEN", "CAUSE"]
    assert [line.split()[0] for line in everything.out.splitlines()[1:]] == ["edge-0", "edge-1", "edge-2"]
    one = person.does("node list --cluster plant --label site=2 --ready unknown --json").json
    assert [each["name"] for each in one] == ["edge-2"]
    assert person.does("node list --cluster plant --version 1.0.0").out == "No nodes.\n"


def test_cli_client_reads_all_pages_of_node_list(person: Person) -> None:
    for number in range(5):
        person.does(f"node create --cluster plant --name edge-{number}")

    found = ServiceOptions(cluster=str(PLANT), state=person.state).nodes.list(page_size=2)
    assert [each["name"] for each in found] == [f"edge-{number}" for number in range(5)]


def test_join_command_names_the_machine_and_moves_the_node_with_replace(person: Person, service: Running) -> None:
    person.does("node create --cluster plant --name edge-1")
    observe(service, "edge-1", ONE)

    bound = person.does("node join-command --cluster plant --name edge-1")
    moving = person.does("node join-command --cluster plant --name edge-1 --replace")

    assert "lives on the machine edge-one (10.0.0.1, Ubuntu 22.04)" in bound.err
    assert "--replace" in bound.err
    assert "becomes node edge-1" in moving.err
    assert "edge-one (10.0.0.1" in person.does("node show --cluster plant --name edge-1").out


def test_node_delete_without_terminal_and_yes_is_refused(person: Person) -> None:
    person.does("node create --cluster plant --name edge-1")

    refused = person.types("node delete --cluster plant --name edge-1")

    assert refused.code == 2
    assert "confirmation-required" in refused.err
    assert "--yes" in refused.err
    assert person.does("node show --cluster plant --name edge-1 --json").json["name"] == "edge-1"
    person.does("node delete --cluster plant --name edge-1 --yes")


def test_node_delete_reports_whether_node_existed(person: Person) -> None:
    person.does("node create --cluster plant --name edge-1")

    deleted = person.does("node delete --cluster plant --name edge-1 --yes")
    assert deleted.out == "edge-1 deleted\n"
    assert deleted.err == ""  # no machine has used the node
    assert person.does("node delete --cluster plant --name edge-1 --yes").out == "node edge-1 not found\n"
    assert person.types("node show --cluster plant --name edge-1").code == 5


def test_ambiguous_or_unknown_cluster_is_refused_with_known_clusters(person: Person) -> None:
    unclear, unknown = person.types("node list"), person.types("node list --cluster moon")

    assert unclear.code == unknown.code == person.types("cluster show").code == 3
    assert "Several clusters exist and none was specified" in unclear.err
    assert str(PLANT) in unclear.err
    assert str(PLANT) in unknown.err


def test_remote_service_is_named_by_the_environment(service: Running, person: Person, tmp_path: Path) -> None:
    url, key = service.service.settings.origin, service.service.settings.admin_key_file
    away = {"AKS_FLEX_RP_STATE": str(tmp_path / "elsewhere"), "AKS_FLEX_RP_URL": url}
    ca = {"AKS_FLEX_RP_CA": str(service.room / "tls" / "ca.crt")}

    token = {"AKS_FLEX_RP_TOKEN_FILE": str(key)}
    assert person.does("node list", env={**away, **ca, **token, "AKS_FLEX_RP_CLUSTER": str(PLANT)}).out
    piped = f"--token-file - --cluster {PLANT}"
    assert person.does(f"node list {piped}", stdin=key.read_text(), env={**away, **ca}).out


def test_admin_key_is_not_sent_to_another_service(person: Person) -> None:
    elsewhere = person.types(f"node list --cluster {PLANT} --url https://elsewhere.example")

    assert elsewhere.code == 2
    assert "requires a credential" in elsewhere.err


def test_wrong_token_is_refused_with_arm_error_code(person: Person, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("aksflex_admin_" + "x" * 40)
    wrong.chmod(0o600)

    done = person.types(f"node list --cluster plant --token-file {wrong}")
    assert done.code == 5
    assert "AuthenticationFailed" in done.err or "InvalidAuthenticationToken" in done.err


def test_cli_commands_do_not_create_missing_state_directory(tmp_path: Path) -> None:
    person = Person(tmp_path / "nothing")

    for words in (("cluster", "list"), ("node", "list"), ("keys", "list"), ("backup", str(tmp_path / "b.tar"))):
        assert person.types(*words).code == 3
    assert not person.state.exists()


@dataclass(frozen=True)
class Interrupted(Resource):
    """A node with one concurrent change directly after its read."""

    acts: list[Callable[[], object]] = field(default_factory=list)

    def get(self) -> dict[str, Any]:
        found = super().get()
        while self.acts:
            self.acts.pop()()
        return found


def interrupted(person: Person, line: str) -> Interrupted:
    node = ServiceOptions(cluster=str(PLANT), state=person.state).nodes.at("edge-1")
    return Interrupted(node.service, node.path, [lambda: person.does(line)])


def test_node_update_merges_with_concurrent_change_of_other_property(person: Person) -> None:
    person.does("node create --cluster plant --name edge-1 --max-pods 50")
    line = "node update --cluster plant --name edge-1 --label site=north"
    node = interrupted(person, line)

    written, _ = update_node(node, None, NodeOptions(max_pods=60, labels=["rack=7"]), {})
    assert written["properties"]["nodeConfig"] == {"maxPods": 60, "labels": {"site": "north", "rack": "7"}}


def test_node_update_is_refused_on_concurrent_change_of_same_property(person: Person) -> None:
    person.does("node create --cluster plant --name edge-1 --max-pods 50")
    line = "node update --cluster plant --name edge-1 --max-pods 70"
    node = interrupted(person, line)

    with pytest.raises(ConfigError, match=r"nodeConfig\.maxPods") as caught:
        update_node(node, None, NodeOptions(max_pods=60), {})
    assert caught.value.name == "node-conflict"

    written, _ = update_node(node, None, NodeOptions(max_pods=60), {})
    assert written["properties"]["nodeConfig"]["maxPods"] == 60
