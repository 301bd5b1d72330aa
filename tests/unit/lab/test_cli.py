"""Tests of the lab's command line: errors for invalid arguments, and help of every command."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from aks_flex_lab.cli import app, console
from aks_flex_lab.cli.lab_commands import provide_versions
from aks_flex_lab.errors import UsageError
from aks_flex_lab.lab import Lab
from aks_flex_lab.layout import LabLayout, lab_layout
from aks_flex_lab.progress import NO_PROGRESS, ProgressReporter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import click

runner = CliRunner()


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        inner = commands(cast("click.Group", command), (*path, name)) if hasattr(command, "commands") else []
        found += [((*path, name), command), *inner]
    return found


EVERY = commands(cast("click.Group", typer.main.get_command(app)))


@pytest.mark.parametrize(("path", "command"), EVERY, ids=[" ".join(path) for path, _ in EVERY])
def test_every_lab_command_and_option_has_help_text(path: tuple[str, ...], command: click.Command) -> None:
    assert command.help, path
    for parameter in command.params:
        assert getattr(parameter, "help", None), f"{' '.join(path)}: {parameter.name}"


def test_invalid_lab_name_is_refused() -> None:
    said = runner.invoke(app, ["--lab", "No/Lab", "status"])

    assert said.exit_code == 2
    assert "lab-name-invalid" in said.output


@pytest.mark.parametrize("words", [["machine", "list"], ["kubeconfig"], ["token"]])
def test_error_for_lab_that_is_not_up_names_the_command_to_run(
    words: list[str], tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AKS_FLEX_LAB_HOME", str(tmp_path_factory.mktemp("labs")))
    said = runner.invoke(app, ["--lab", "absent", *words])

    assert "aks-flex-lab --lab absent " in said.output


def test_error_hint_includes_the_selected_lab_name(monkeypatch: pytest.MonkeyPatch) -> None:
    error = UsageError("some-name", "It went wrong.", "Run `aks-flex-lab up`, or `aks-flex-lab --lab x down`.")

    said = io.StringIO()
    monkeypatch.setattr(console, "err", Console(file=said, soft_wrap=True))
    console.print_error(error, lab_layout("mine", {}))

    assert "Run `aks-flex-lab --lab mine up`, or `aks-flex-lab --lab x down`." in said.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["principal", "edge-1"],
        ["principal", "edge-1", "--secret-file", "a", "--certificate-file", "b"],
        ["principal", "edge-1", "--secret-file", "a", "--machine", "edge-1"],
    ],
)
def test_principal_needs_exactly_one_credential(words: list[str]) -> None:
    said = runner.invoke(app, words)

    assert said.exit_code == 2
    assert "principal-credential-invalid" in said.output


@dataclass(frozen=True)
class RecordingLab(Lab):
    provided: list[str] = field(default_factory=list)

    def provide(self, tools: Iterable[str], progress: ProgressReporter = NO_PROGRESS) -> Path:  # noqa: ARG002
        self.provided.extend(tools)
        return self.layout.cache


@pytest.mark.parametrize(
    ("line", "tools"),
    [
        ("node create --name a --kubernetes-version v1.35.4", ["kubernetes@1.35.4"]),
        ("pool update --runc-version=1.4.0 --cni-version 1.7.1", ["runc@1.4.0", "cni-plugins@1.7.1"]),
        ("pool update --containerd-version 2.99.99", []),  # the mirror may have it: a test has published it
        ("node list", []),
    ],
)
def test_versions_that_a_command_names_are_installed(tmp_path: Path, line: str, tools: list[str]) -> None:
    lab = RecordingLab(LabLayout("test", tmp_path / "labs", tmp_path / "cache"))
    provide_versions(lab, line.split())
    assert lab.provided == tools
