"""Tests of `aks-flex-node` commands that need no root and no host, and of error handling."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.testing import CliRunner

from aks_flex_node import __version__, errors
from aks_flex_node.agent import context
from aks_flex_node.agent.bootstrap.phases import JOIN_PHASES
from aks_flex_node.agent.cli import app as commands
from aks_flex_node.agent.cli import artifact_commands, help_pages, main, node_commands, terminal
from aks_flex_node.agent.reconcile.engine import ComponentPlan
from aks_flex_node.agent.reconcile.observer import Facts
from aks_flex_node.agent.reconcile.resources import Spec
from aks_flex_node.errors import CommandUsageError, FlexError
from aks_flex_node.host.actions import MakeDirectory, WriteFile
from aks_flex_node.settings.table import keys
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import CLUSTER_ID, TOKEN, Settings, settings

if TYPE_CHECKING:
    from collections.abc import Callable


def ran(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(commands.app, list(words), catch_exceptions=False)
    return result.exit_code, result.stdout


def exit_code_of(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """Runs the program; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["aks-flex-node", *words])
    with pytest.raises(SystemExit) as caught:
        main()
    return int(caught.value.code or 0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.touch(mode=0o600)
    path.write_text(settings(JOIN))
    return path


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_version_is_printed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(*words) == (0, f"{__version__}\n")
    monkeypatch.setattr(sys, "argv", ["aks-flex-node", *words])
    main()
    assert capsys.readouterr().out == f"{__version__}\n"


def test_version_is_printed_as_json() -> None:
    code, text = ran("version", "--json")
    assert (code, json.loads(text)) == (0, {"version": __version__})


@pytest.mark.parametrize("name", ["bundle", "bundle-1.34.4", "b.tar", "b.tar.gz", "b-1.2.tgz"])
def test_bundle_directory_and_tar_names_are_accepted(name: str) -> None:
    artifact_commands.refuse_bundle_options(Path("/x", name), "")


def test_bootstrap_list_prints_one_line_per_phase() -> None:
    code, text = ran("bootstrap", "--list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()] == [
        "PHASE",
        *(phase.name for phase in JOIN_PHASES),
    ]


def test_config_validate_accepts_a_valid_config(file: Path) -> None:
    code, text = ran("config", "validate", "--config", str(file))
    assert (code, text) == (0, f"{file} is valid.\n")
    code, text = ran("config", "validate", "--config", str(file), "--json")
    assert (code, json.loads(text)["valid"]) == (0, True)


@pytest.fixture
def validated(tmp_path: Path) -> Callable[..., tuple[int, Any]]:
    """Returns a function that validates a configuration; it returns the exit code and the JSON output."""

    def validate(values: Settings, *words: str) -> tuple[int, Any]:
        path = tmp_path / "config.json"
        path.touch(mode=0o600)
        path.write_text(settings(values))
        code, text = ran("config", "validate", "--config", str(path), "--json", *words)
        return code, json.loads(text)

    return validate


@pytest.mark.parametrize(
    ("words", "paths"),
    [
        (["--set", "node.maxPods=0", "--set", "node.name=UPPER"], {"node.maxPods", "node.name"}),
        (["--set", "kubernetes.version=1.34"], {"kubernetes.version"}),
    ],
)
def test_config_validate_reports_all_problems_as_json(
    validated: Callable[..., tuple[int, Any]], words: list[str], paths: set[str]
) -> None:
    code, found = validated(JOIN, *words)
    assert (code, found["valid"]) == (3, False)
    assert {problem["path"] for problem in found["problems"]} == paths
    assert all(problem["reason"] for problem in found["problems"])


def test_config_validate_reports_settings_required_for_a_join(validated: Callable[..., tuple[int, Any]]) -> None:
    code, found = validated({}, "--set", "node.maxPods=5")
    assert code == 3
    assert {"node.kubelet.serverURL", "kubernetes.version"} <= {one["path"] for one in found["problems"]}


ARC_SETTINGS = {"azure.subscriptionId": "s", "azure.tenantId": "t", "azure.resourceGroup": "g"}


@pytest.mark.parametrize(
    ("values", "path", "said"),
    [
        ({"azure.cloud": "InvalidCloud"}, "azure.cloud", "set azure.resourceManager and azure.authorityHost"),
        ({"azure.cloud": "AzurePublicCloudd"}, "azure.cloud", "Did you mean AzurePublicCloud?"),
        ({"azure.servicePrincipal.clientId": "a"}, "azure.servicePrincipal.clientSecretFile", "set clientSecret"),
        ({"azure.arc.machineName": "a", **ARC_SETTINGS}, "azure.location", "or set azure.arc.enabled to false"),
        ({"provider.caCertData": "bm9uc2Vuc2U="}, "provider.caCertData", "is not a certificate"),
        ({"azure.caCertData": "nonsense"}, "azure.caCertData", "is not a certificate"),
        ({"node.kubelet.serverURL": ""}, "node.kubelet.serverURL", "or set azure.targetCluster.resourceId to read"),
        ({"node.kubelet.caCertData": ""}, "node.kubelet.caCertData", "or set azure.targetCluster.resourceId to read"),
    ],
)
def test_config_validate_refuses_what_a_join_cannot_use(
    validated: Callable[..., tuple[int, Any]], values: Settings, path: str, said: str
) -> None:
    code, found = validated({**JOIN, **values})
    (problem,) = found["problems"]
    assert (code, problem["path"]) == (3, path)
    assert said in problem["reason"]


@pytest.mark.parametrize("missing", ["node.kubelet.serverURL", "node.kubelet.caCertData", "kubernetes.version"])
def test_config_validate_lists_what_a_join_reads_from_azure(
    validated: Callable[..., tuple[int, Any]], missing: str
) -> None:
    code, found = validated({**JOIN, missing: "", "azure.targetCluster.resourceId": CLUSTER_ID})
    requests = {row["path"]: row["request"] for row in found["readFromAzure"]}
    assert code == 0
    assert set(requests) == {missing, "node.kubelet.dnsServiceIP"}
    assert all(CLUSTER_ID in request for request in requests.values())


MANAGED_BY_PRINCIPAL: Settings = {
    "azure.bootstrapToken.token": None,
    "continuousMonitoring": True,
    "azure.targetCluster.resourceId": CLUSTER_ID,
    "provider.url": "https://a",
    "azure.servicePrincipal": {"tenantId": "t", "clientId": "c", "clientSecret": "s"},
}


@pytest.mark.parametrize(
    "values",
    [MANAGED_BY_PRINCIPAL, {"azure.cloud": "Ours", "azure.resourceManager": "https://arm.example"}],
    ids=["managed node without a token", "private cloud"],
)
def test_config_validate_accepts_what_a_join_can_use(
    validated: Callable[..., tuple[int, Any]], values: Settings
) -> None:
    assert validated({**JOIN, **values})[0] == 0


def test_config_validate_warns_about_a_missing_dns_address(validated: Callable[..., tuple[int, Any]]) -> None:
    _, found = validated(JOIN)
    assert found["readFromAzure"] == []
    assert ["dnsServiceIP" in each for each in found["warnings"]] == [True]


def test_config_show_prints_settings_without_secrets(file: Path) -> None:
    code, text = ran("config", "show", "--config", str(file), "--set", "node.maxPods=50")
    assert code == 0
    assert TOKEN not in text
    (line,) = [line for line in text.splitlines() if line.startswith("node.maxPods")]
    assert "50" in line
    code, text = ran("config", "show", "--config", str(file), "--json", "--given")
    assert TOKEN not in text
    assert {"node.kubelet.serverURL"} <= {row["key"] for row in json.loads(text)}


def test_config_explain_says_who_may_set_it_and_what_it_reaches() -> None:
    code, text = ran("config", "explain", "registryMirrors")
    assert code == 0
    assert "owner: owners of the cluster, through the provider" in text
    assert "images: it decides from where the node's container images come" in text
    assert "nothing: no running program" in text
    [found] = json.loads(ran("config", "explain", "node.kubelet.auth", "--json")[1])
    assert found["setBy"].startswith("contributor, owner for exec: ")
    assert "default      as described\n" in ran("config", "explain", "node.kubelet.auth")[1]
    assert (found["api"], found["type"]) == (
        "properties.kubernetesAuth.method",
        "`bootstrapToken`, `exec`, `certificate`",
    )
    listed = json.loads(ran("config", "explain", "azure.vpn", "--json")[1])
    assert [each["key"] for each in listed] == [each.path for each in keys() if each.path.startswith("azure.vpn.")]
    assert len(ran("config", "explain")[1].splitlines()) == len([*keys()]) + 1
    assert "contributor, owner for exec  credentials" in ran("config", "explain", "node.kubelet")[1]


def test_config_explain_names_the_nearest_setting() -> None:
    with pytest.raises(CommandUsageError) as refused:
        ran("config", "explain", "azure.vpm")
    assert refused.value.hint.startswith("Did you mean azure.vpn?")


def test_config_init_creates_a_file_with_mode_0600(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    assert ran("config", "init", str(path))[0] == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text() == ran("config", "init")[1]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_is_printed_for_the_shell(shell: str) -> None:
    code, text = ran("completion", shell)
    assert code == 0
    assert "_AKS_FLEX_NODE_COMPLETE" in text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bootstrap", "--only", "kubelt"], 2, "phase-unknown"),
        (["bootstrap", "--from", "kubelt"], 2, "phase-unknown"),
        (["bootstrap", "--skip-phase", "readiness"], 2, "phase-unknown"),
        (["plan", "--only", "kubelt"], 2, "phase-unknown"),
        (["completion", "tcsh"], 2, "shell-unsupported"),
        (["artifacts", "bundle", "x.zip"], 2, "offline-bundle-format-unsupported"),
        (["artifacts", "bundle", "x.gz"], 2, "offline-bundle-format-unsupported"),
        (["artifacts", "bundle", "x.tar", "--arch", "arm"], 2, "bundle-architecture-unsupported"),
        (["config", "init", "/proc/x/y"], 2, "file-not-writable"),
        (["config", "validate", "--config", "/none/at/all.json"], 3, "config-"),
        (["config", "validate", "--set", "node.maxPods"], 2, "set-option-invalid"),
        (["bootstap"], 2, "No such command"),
        (["bootstrap", "--wat"], 2, "No such option"),
    ],
    ids=str,
)
def test_wrong_arguments_exit_with_a_code_and_an_error_name(
    words: list[str], code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(monkeypatch, *words) == code
    assert said in capsys.readouterr().err


def test_config_init_does_not_overwrite_an_existing_file(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = file.read_text()
    assert exit_code_of(monkeypatch, "config", "init", str(file)) == 2
    assert "file-exists" in capsys.readouterr().err
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.FlexError, 1),
        (errors.CommandUsageError, 2),
        (errors.ConfigError, 3),
        (errors.MachineError, 4),
        (errors.ArtifactError, 5),
        (errors.ClusterError, 6),
        (errors.BusyError, 7),
    ],
)
def test_every_error_class_has_its_exit_code(kind: type[FlexError], code: int) -> None:
    error = kind("some-name", "It happened.", "Do this.")
    assert (error.exit_code, str(error), error.retryable) == (code, "It happened. Do this.", False)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.BusyError("agent-locked", "Somebody is at work."), 7, "agent-locked"),
        (PermissionError(13, "Permission denied", "/var/lib/aks-flex-node/ledger.json"), 4, "sudo"),
        (KeyboardInterrupt(), 130, "Run the same command again to continue"),
    ],
    ids=["our own", "not root", "interrupted"],
)
def test_command_failure_prints_the_error_and_exits_with_its_code(
    error: BaseException, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = typer.Typer()

    @other.command()
    def fail() -> None:
        raise error

    monkeypatch.setattr(sys, "argv", ["aks-flex-node"])
    with pytest.raises(SystemExit) as caught:
        commands.run(other)
    assert caught.value.code == code
    assert said in capsys.readouterr().err


def test_printed_error_has_all_lines_hint_and_troubleshooting_link(
    capsys: pytest.CaptureFixture[str],
) -> None:
    terminal.print_error(errors.ConfigError("config-invalid", "Two problems:\n  one\n  two", "Correct them."))
    assert capsys.readouterr().err.splitlines() == [
        "error: Two problems:",
        "         one",
        "         two",
        "       Correct them.",
        "       config-invalid: run `aks-flex-node explain config-invalid` for causes and remedies",
    ]


def test_table_is_aligned_without_trailing_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_table(("A", "LONG"), [("longer", "x"), ("y", "")])
    assert capsys.readouterr().out == "A       LONG\nlonger  x\ny\n"


def test_set_options_are_parsed_as_key_value_pairs() -> None:
    assert context.parse_settings(["a.b=1", "c=x=y", "d="]) == {"a.b": "1", "c": "x=y", "d": ""}
    with pytest.raises(CommandUsageError, match="has no value"):
        context.parse_settings(["a.b"])


def test_plan_is_printed_as_diff_without_secrets(capsys: pytest.CaptureFixture[str]) -> None:
    host = RecordedHost({"/etc/a": "one\ntwo\n"})
    actions = (
        MakeDirectory("/etc/d"),
        WriteFile("/etc/a", b"one\nthree\n"),
        WriteFile("/etc/s", b"hidden", 0o600, secret=True),
    )
    plans = [ComponentPlan("cni", Spec(), Facts(), actions), ComponentPlan("npd", Spec(), Facts(), ())]
    assert node_commands.print_plans(plans, host) == 3
    assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [
        "cni:",
        "create directory /etc/d (0755)",
        "write /etc/a (0644, 10 bytes)",
        "@@ -1,2 +1,2 @@",
        "one",
        "-two",
        "+three",
        "write /etc/s (0600, 6 bytes)",
        "(secret content)",
    ]
    again = [*plans, ComponentPlan("kubelet", Spec(), Facts(), (MakeDirectory("/etc/d"), MakeDirectory("/etc/e")))]
    assert [one["what"] for one in node_commands.plans_as_data(again)].count("create directory /etc/d (0755)") == 1
    assert node_commands.print_plans(again, host) == 4
    assert node_commands.plans_as_data(plans)[0] == {
        "component": "cni",
        "action": "MakeDirectory",
        "what": "create directory /etc/d (0755)",
    }


@pytest.mark.parametrize("words", [[], ["--help"], ["bootstrap", "-h"], ["config", "validate", "--help"]])
def test_help_pages_are_prerendered(words: list[str]) -> None:
    text = help_pages.find_page(words)
    assert text is not None
    assert text.startswith("Usage: aks-flex-node")


def test_prerendered_help_pages_are_up_to_date() -> None:
    said = json.loads(help_pages.render_pages())
    assert json.loads(help_pages.PAGES.read_text()) == said, "run `python -m aks_flex_node.agent.cli.help_pages`"
