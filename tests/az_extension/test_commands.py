"""Tests of every command, with every output format of az."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import yaml

from tests.az_extension.commands import flex, ran, refused, table
from tests.node_key_client import HeldKey
from tests.service.lab.cloud_harness import CLUSTER
from tests.service.rp.api.enrolling_machine import EnrollingMachine

if TYPE_CHECKING:
    from pathlib import Path

    from tests.az_extension.harness import Site
    from tests.az_extension.recording_proxy import Between
    from tests.az_extension.warm_az import WarmAz
    from tests.azure_cli import Az

COLUMNS = ["Name", "Ready", "JoinState", "Desired", "Applied", "ConfigApplied", "LastSeen", "Cause"]
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-15T10:00:00Z"}


def test_create_outputs_config_url_and_update_sets_version(owner: Az, site: Site, name: str) -> None:
    """Uses az without the fork server."""
    create = f"aks flex-node create --cluster plant --resource-group edge --name {name}"
    url = owner.run(
        *f"{create} --auth-method bootstrapToken --output-config-url --query properties.configUrl -o tsv".split()
    ).out
    assert site.admin.fetch(url.strip()).json["config"]["node"]["name"] == name
    update = f"aks flex-node update --cluster plant --resource-group edge --node {name} --kubernetes-version 1.34.4"
    owner.run(*update.split())
    assert site.admin.get(name).properties["versions"] == {"kubernetes": "1.34.4"}


def test_create_accepts_short_options_and_output_url(az: WarmAz, name: str) -> None:
    words = ("-g", "edge", "--cluster-name", "plant", "-n", name, "--auth-method", "bootstrapToken", "--output-url")
    made = az("aks", "flex-node", "create", *words)
    assert made["properties"]["configUrl"].startswith("https://localhost:")


def test_config_url_is_output_only_with_output_config_url(az: WarmAz, name: str) -> None:
    assert "configUrl" not in flex(az, "create", "--name", name)["properties"]
    assert "configUrl" not in flex(az, "show", "--name", name)["properties"]
    assert "configUrl" in flex(az, "update", "--name", name, "--output-config-url")["properties"]


def test_create_is_refused_when_node_exists(az: WarmAz, name: str) -> None:
    flex(az, "create", "--name", name, "--max-pods", "50")
    message = refused(az, "create", "--name", name.upper())
    assert f"The flex node {name.upper()} already exists." in message
    assert "az aks flex-node update" in message
    assert flex(az, "show", "--name", name)["properties"]["nodeConfig"] == {"maxPods": 50}


def test_create_options_become_node_properties(az: WarmAz, name: str, site: Site) -> None:
    (site.service.room / "kubelet.yaml").write_text("podPidsLimit: 100\nkubeReserved: {cpu: 100m}\n")
    words = (
        "--labels topology.kubernetes.io/zone=a rack=7 --labels empty= --taints edge=yes:NoSchedule spot:NoExecute "
        "--max-pods 50 --containerd-version 2.4.2 --runc-version 1.5.2 --cni-version 1.9.1 --npd-version 1.34.0 "
        f"--kubernetes-version v1.34.4 --drift-policy log --pause --kubelet-config {site.service.room}/kubelet.yaml"
    )
    properties = flex(az, "create", "--name", name, *words.split())["properties"]
    assert properties["versions"] == {
        "kubernetes": "v1.34.4",
        "containerd": "2.4.2",
        "runc": "1.5.2",
        "cni": "1.9.1",
        "npd": "1.34.0",
    }
    assert properties["nodeConfig"] == {
        "labels": {"topology.kubernetes.io/zone": "a", "rack": "7", "empty": ""},
        "taints": [{"key": "edge", "value": "yes", "effect": "NoSchedule"}, {"key": "spot", "effect": "NoExecute"}],
        "maxPods": 50,
        "kubelet": {"podPidsLimit": 100, "kubeReserved": {"cpu": "100m"}},
        "driftPolicy": "log",
        "updatePolicy": {"paused": True},
    }


def test_create_options_override_properties_file(az: WarmAz, name: str, site: Site) -> None:
    file = site.service.room / "node.json"
    file.write_text(json.dumps({"properties": {"nodeConfig": {"maxPods": 10, "labels": {"a": "1"}}, "status": {}}}))
    made = flex(az, "create", "--name", name, "--file", str(file), "--max-pods", "20")
    assert made["properties"]["nodeConfig"] == {"maxPods": 20, "labels": {"a": "1"}}


def test_properties_file_accepts_empty_keys_and_dates_in_yaml(az: WarmAz, name: str, site: Site) -> None:
    file = site.service.room / "node.yaml"
    file.write_text("azureAuth:\nversions:\nnodeConfig: {kubelet: , labels: {since: 2026-11-15, rack: }}\n")
    words = ("--max-pods", "20", "--labels", "a=1", "--kubernetes-version", "1.34.4")
    made = flex(az, "create", "--name", name, "--file", str(file), *words)["properties"]
    assert made["nodeConfig"] == {"maxPods": 20, "labels": {"since": "2026-11-15", "a": "1"}}
    assert made["versions"] == {"kubernetes": "1.34.4"}
    for text, why in {
        "nodeConfig: {labels: [a, b]}": "nodeConfig.labels has the wrong type.",
        "nodeConfig: {maxPods: 1, maxPods: 2}": "line 1 repeats 'maxPods'.",
        "{properties: {}, nodeconfig: {}}": "nodeconfig is unknown beside properties.",
    }.items():
        file.write_text(text)
        assert why in refused(az, "create", "--name", f"{name}-b", "--file", str(file))


def test_commands_accept_several_nodes_by_resource_id(az: WarmAz, name: str) -> None:
    other = f"{name}-b"
    ids = [flex(az, "create", "--name", each)["id"] for each in (name, other)]
    shown = az("aks", "flex-node", "show", "--ids", *ids)
    assert {each["name"] for each in shown} == {name, other}
    az.run("aks", "flex-node", "update", "--ids", *ids, "--labels", "both=yes")
    found = flex(az, "list", "--label", "both=yes", "--query", "[].name")
    assert set(found) == {name, other}
    shown = az.run("aks", "flex-node", "show", "--ids", *ids, "-o", "table").out.splitlines()
    assert {line.split()[0] for line in shown[2:]} == {name, other}
    renewed = az("aks", "flex-node", "regenerate-token", "--ids", *ids)
    assert {each["name"] for each in renewed} == {name, other}


def test_list_filters_by_label_readiness_join_state_and_version(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name, "--labels", f"own={name}", "--kubernetes-version", "1.33.9")
    own = ("--label", f"own={name}", "--query", "[].name")
    assert flex(az, "list", *own) == [name]
    filters = ("--ready", "unknown", "--join-state", "Created", "--kubernetes-version", "1.33.9")
    assert flex(az, "list", *own, *filters) == [name]
    assert flex(az, "list", *own, "--ready", "True") == []
    assert flex(az, "list", *own, "--join-state", "Joined") == []


def test_list_pages_through_next_link_on_same_endpoint_only(
    az: WarmAz, owner: Az, between: Between, name: str
) -> None:
    """Every request contains a token, so az must not follow a link to another host."""
    link = f"https://elsewhere.example{CLUSTER}/flexNodeConfig?api-version=1&%24skipToken=a%2Fb"
    pages = [{"value": [{"name": f"{name}-{each}"}]} for each in range(2)]
    between.answers += [(200, {"Content-Type": "application/json"}, page) for page in pages]
    pages[0]["nextLink"] = link  # type: ignore[assignment]
    found = flex(az, "list", "--rp-endpoint", between.url, "--query", "[].name")
    assert found == [f"{name}-0", f"{name}-1"]
    assert between.asked[1] == f"GET {link.removeprefix('https://elsewhere.example')}"


def test_table_output_shows_state_versions_and_join_failure(az: WarmAz, site: Site, name: str) -> None:
    made = flex(az, "create", "--name", name, "--labels", f"own={name}", "--kubernetes-version", "1.33.9")
    flex(az, "create", "--name", f"{name}-b", "--labels", f"own={name}")
    version = made["properties"]["configVersion"]
    report = {
        "conditions": [READY],
        "kubeletVersion": "v1.33.9",
        "appliedConfigVersion": version,
    }
    assert site.admin.report(name, report).status == 200
    failed = {"joinState": "Failed", "joinFailure": "The clock is an hour behind. Set it, and join again."}
    assert site.admin.report(f"{name}-b", failed).status == 200

    heads, rule, first, second = table(az, "list", "--label", f"own={name}")
    assert heads.split() == COLUMNS
    starts = [heads.index(each) for each in COLUMNS]
    cells = [
        [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)] for line in (first, second)
    ]
    assert rule.startswith("---")
    assert cells[0][:6] == [name, "True", "Created", "1.33.9", "v1.33.9", "True"]
    assert cells[0][6].endswith("s ago")
    assert cells[1][1:3] == ["Unknown", "Failed"]
    assert cells[1][5:] == ["Unknown", cells[1][6], failed["joinFailure"]]
    one = table(az, "show", "--name", name)
    assert one[0].split()[: len(COLUMNS) - 1] == COLUMNS[:-1]


def test_table_output_shows_why_configuration_is_not_applied(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name, "--labels", f"own={name}", "--pause")
    paused = {"type": "ConfigApplied", "status": "False", "reason": "Paused", "message": "Updates are paused."}
    for conditions, cause in (
        ([READY], "Paused"),
        ([READY, paused], "ConfigApplied: Paused: Updates are paused."),
        (
            [READY, {"type": "CredentialsRejected", "status": "True", "reason": "SignInRejected"}],
            "CredentialsRejected: SignInRejected",
        ),
    ):
        report = {"conditions": conditions, "appliedConfigVersion": "1"}
        assert site.admin.report(name, report).status == 200
        [row] = table(az, "list", "--label", f"own={name}")[2:]
        assert row.endswith(cause)
        assert " False " in row


def test_table_output_includes_requested_config_url(az: WarmAz, name: str) -> None:
    """The config URL is shown only once. A user with table output as default would lose it."""
    assert "https://localhost:" in table(az, "create", "--name", name, "--output-config-url")[-1]


def test_reported_text_is_stripped_of_terminal_control_characters(az: WarmAz, site: Site, name: str) -> None:
    site.admin.put(name)
    failed = {"joinState": "Failed", "joinFailure": "No route.\n\x1b[2J\x1b[31mAll is well\r\u202e."}
    assert site.admin.report(name, failed).status == 200
    shown = ran(az, "show", "--name", name, "-o", "table").out
    waited = refused(az, "wait", "--name", name, "--ready")
    for text in (shown, waited):
        assert "No route. [2J[31mAll is well ." in text


def test_output_formats_contain_same_data(az: WarmAz, name: str) -> None:
    flex(az, "create", "--name", name)
    show = ("show", "--name", name, "-o")
    document = json.loads(ran(az, *show, "json").out)
    assert document["id"] == f"{CLUSTER}/flexNodeConfig/{name}"
    assert yaml.safe_load(ran(az, *show, "yaml").out) == document
    columns = ran(az, *show, "tsv", "--query", "[[name, properties.provisioningState]]").out
    assert columns == f"{name}\tSucceeded\n"
    assert ran(az, *show, "none").out == ""


def test_join_command_prints_one_line_and_invalidates_previous_url(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name)
    ask = ("join-command", "--name", name)
    pasted, piped = ran(az, *ask), ran(az, *ask, "-o", "tsv")
    for done in (pasted, piped):
        [line] = done.out.splitlines()
        assert shlex.split(line)[2:] == ["|", "aks-flex-node", "agent", "--config-url-file", "-"]
        assert "configuration URL is revoked" in done.err
    dead, alive = (site.admin.fetch(shlex.split(done.out)[1]) for done in (pasted, piped))
    assert (dead.status, alive.status) == (404, 200)


def test_regenerate_token_returns_new_config_url(az: WarmAz, name: str) -> None:
    first = flex(az, "create", "--name", name, "--output-url")["properties"]["configUrl"]
    made = flex(az, "regenerate-token", "--name", name)
    assert made["configUrl"] != first
    assert set(made) == {"name", "configUrl", "configUrlExpires", "configVersion"}
    moved = ran(az, "regenerate-token", "--name", name, "--replace")
    assert f"The machine that uses the URL becomes node {name}." in moved.err


def test_revoke_key_names_the_key_that_is_revoked(az: WarmAz, site: Site, name: str) -> None:
    url = flex(az, "create", "--name", name, "--output-url")["properties"]["configUrl"]
    assert "has no key" in refused(az, "revoke-key", "--name", name)
    key = HeldKey()
    assert site.admin.fetch(url, key=key).status == 200

    revoked = flex(az, "revoke-key", "--name", name)

    assert (revoked["name"], revoked["thumbprint"]) == (name, key.thumbprint)
    shown = flex(az, "show", "--name", name)["properties"]["status"]["nodeKey"]
    assert (shown["state"], shown["fingerprint"]) == ("Revoked", revoked["fingerprint"])


def test_wait_ends_when_node_is_ready_or_join_failed(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name)
    wait = ("wait", "--name", name, "--timeout", "1", "--interval", "1")
    ran(az, *wait, "--created")
    assert "timed-out after 1 seconds" in refused(az, *wait, "--ready")

    site.admin.report(name, {"joinState": "Failed", "joinFailure": "No route to the API server."})
    message = refused(az, *wait, "--ready")
    assert "could not join: No route to the API server." in message

    site.admin.report(name, {"conditions": [READY]})
    ran(az, *wait, "--ready")
    ran(az, *wait, "--custom", "properties.status.joinState=='Failed'")

    flex(az, "delete", "--name", name, "--yes")
    ran(az, *wait, "--deleted")
    refused(az, *wait, "--exists", code=3)


def test_wait_without_condition_names_possible_conditions(az: WarmAz, name: str) -> None:
    message = refused(az, "wait", "--name", name)
    assert "No condition to wait for." in message
    assert "--ready, --created, --updated, --deleted, --exists, --custom" in message


def test_wait_retries_when_provider_is_briefly_unavailable(
    az: WarmAz, site: Site, between: Between, name: str
) -> None:
    not_yet = site.admin.put(name).json
    site.admin.report(name, {"conditions": [READY]})
    between.answers += [(200, {"Content-Type": "application/json"}, not_yet), *[(0, {}, None)] * 3]
    wait = ("wait", "--name", name, "--ready", "--interval", "1", "--timeout", "9")
    done = ran(az, *wait, "--rp-endpoint", between.url)
    assert "The service does not respond. Retrying in 1 s." in done.err


def test_delete_requires_confirmation_and_prints_nothing(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name)
    delete = ("delete", "--name", name)
    assert "Use --yes" in refused(az, *delete)
    done = ran(az, *delete, "--yes")
    assert (done.out, "unbootstrap" in done.err) == ("", False)
    assert site.admin.get(name).status == 404
    again = ran(az, *delete, "--yes")
    assert f"The flex node {name} was not found." in again.err


def test_delete_of_used_node_says_what_to_run_on_its_machine(az: WarmAz, site: Site, name: str) -> None:
    flex(az, "create", "--name", name)
    failed = {"joinState": "Failed", "joinFailure": "No route."}
    assert site.admin.report(name, failed).status == 200
    done = ran(az, "delete", "--name", name, "--yes")
    assert done.out == ""
    assert "Run `aks-flex-node unbootstrap` on it." in done.err


def test_no_wait_prints_nothing_and_is_refused_with_output_url(az: WarmAz, site: Site, name: str) -> None:
    assert ran(az, "create", "--name", name, "--no-wait").out == ""
    assert site.admin.get(name).status == 200
    assert "cannot be used with --no-wait" in refused(az, "update", "--name", name, "--no-wait", "--output-url")


def test_pool_from_creation_to_deletion(az: WarmAz, site: Site, name: str) -> None:
    def pool(verb: str, *words: str) -> Any:
        return flex(az, f"pool {verb}", *words)

    on = ("--name", "line")
    made = pool("create", *on, "--labels", "site=north", "--max-pods", "50", "--description", "Pumps")
    assert made["properties"]["template"] == {"nodeConfig": {"labels": {"site": "north"}, "maxPods": 50}}
    assert flex(az, "create", "--name", name, "--pool", "line")["properties"]["poolRevision"] == 1
    assert [each["name"] for each in flex(az, "list", "--pool", "line")] == [name]
    assert table(az, "list", "--pool", "line")[2].split()[3] == "pool"
    changed = pool("update", *on, "--max-pods", "60")["properties"]
    assert "No changes." in ran(az, "pool update", *on, "--max-pods", "60").err
    assert (changed["revision"], changed["pendingNodeCount"], changed["description"]) == (2, 1, "Pumps")
    revisions = pool("list-revisions", *on)
    assert [each["name"] for each in revisions] == ["2", "1"]
    assert pool("apply", *on, "--nodes", name) == {
        "revision": 2,
        "applied": [name],
        "unchanged": [],
        "refused": [],
    }
    assert pool("apply", *on, "--revision", "1")["applied"] == [name]
    assert "line" in [each["name"] for each in pool("list")]
    assert pool("show", *on)["properties"]["nodeCount"] == 1
    flex(az, "update", "--name", name, "--pool", "")
    ran(az, "pool delete", *on, "--yes")
    assert site.admin.pool("GET", "line").status == 404
    assert "The pool line was not found." in ran(az, "pool delete", *on, "--yes").err


def test_enrolment_from_creation_to_revocation(az: WarmAz, site: Site, tmp_path: Path) -> None:
    on = ("--name", "azline")
    flex(az, "pool create", *on, "--monitor")

    def enrolment(verb: str, *words: str) -> Any:
        return flex(az, f"pool enrolment {verb}", *on, *words)

    made = enrolment("create", "--max-uses", "2", "--approval", "manual", "--node-name", "az-{number:02}")
    url, one = made["properties"]["enrolmentUrl"], ("--id", made["name"])
    assert made["command"].startswith("echo ")
    assert [each["name"] for each in enrolment("list")] == [made["name"]]
    assert "enrolmentUrl" not in enrolment("show", *one)["properties"]
    machines = [EnrollingMachine(f"azline-{each}") for each in "ab"]
    connection = site.service.admin.connection
    shown = [machine.enrol(connection, url).json["fingerprint"] for machine in machines]
    assert {each["fingerprint"] for each in enrolment("machines", *one)} == set(shown)
    assert enrolment("approve", *one, "--fingerprint", shown[0])["state"] == "Approved"
    assert enrolment("reject", *one, "--fingerprint", shown[1])["state"] == "Rejected"
    assert [machine.enrol(connection, url).status for machine in machines] == [200, 409]
    again = ran(az, "pool enrolment approve", *on, *one, "--fingerprint", shown[1])
    assert "its agent has ended" in again.err
    assert flex(az, "release", "--name", "az-01")["state"] == "Released"
    cut_off = ran(az, "revoke-key", "--name", "az-01")
    assert f"Revoke the enrolment as well: the URL of {made['name']} of pool azline" in cut_off.err
    assert enrolment("revoke", *one)["properties"]["state"] == "Revoked"

    listed = tmp_path / "machines.csv"
    listed.write_text("site,serial_number\noslo,0000\n")
    create = ("pool enrolment create", *on, "--max-uses", "1", "--allow-file", str(listed))
    assert "line 2: '0000' is not a serialNumber that identifies a machine" in refused(az, *create)
    listed.write_text("site,serial_number\noslo,ABC1\n")
    allowed = flex(az, *create)["properties"]
    assert (allowed["approval"], allowed["allow"]) == ("allowList", [{"serialNumber": "abc1"}])
    flex(az, "delete", "--name", "az-01", "--yes")
