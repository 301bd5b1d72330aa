"""Tests of the user who ran a command, also with sudo, and of az's errors."""

from __future__ import annotations

import os
import pwd
import time

import pytest

from aks_flex_node.azure.arm import AzureCallError
from aks_flex_node.azure.cli_user import CliUser, explain_cli_error, parse_token
from aks_flex_node.host.host import CommandResult
from aks_flex_node.host.processes import ENVIRONMENT

ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root is somebody else behind sudo")
ME = CliUser("ann", "/home/ann", True, {})


@ROOT
def test_az_runs_as_invoking_user_under_sudo() -> None:
    person = CliUser.at({"SUDO_USER": "daemon", "HOME": "/root", "PATH": "/opt/bin", "AZURE_CONFIG_DIR": "/x"})
    home = pwd.getpwnam("daemon").pw_dir
    assert (person.name, person.home, person.is_other) == ("daemon", home, True)
    # Root uses the system's runuser and env, not those on the user's path.
    path = f"PATH=/opt/bin:{ENVIRONMENT['PATH']}:{home}/.local/bin:{home}/bin"
    assert person.command("az", "x") == ("runuser", "-u", "daemon", "--", "env", f"--chdir={home}", path, "az", "x")
    assert person.environment() == {"HOME": home, "USER": "daemon", "LOGNAME": "daemon", "AZURE_CONFIG_DIR": "/x"}


@ROOT
@pytest.mark.parametrize("sudo", [{}, {"SUDO_USER": "root"}, {"SUDO_USER": "nobody-by-this-name"}])
def test_az_runs_as_root_without_a_valid_sudo_user(sudo: dict[str, str]) -> None:
    person = CliUser.at({**sudo, "HOME": "/root"})
    assert (person.name, person.is_other) == ("root", False)
    assert person.command("az", "x") == ("az", "x")


def test_az_environment_excludes_unrelated_variables() -> None:
    assert "canary" not in str(CliUser.at({"AKS_FLEX_NODE_SECRET": "canary", "HOME": "/x"}).environment())


def test_az_token_and_expiry_are_parsed() -> None:
    assert parse_token('{"accessToken": "t", "expires_on": 1700000000, "expiresOn": "x"}') == ("t", 1700000000)


def test_token_expiry_in_local_time_from_older_az_is_parsed() -> None:
    moment = 1700000000
    local = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    assert parse_token(f'{{"accessToken": "t", "expiresOn": "{local}.000000"}}') == ("t", moment)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"accessToken": "canary"}', '{"accessToken": "c", "expiresOn": 5}']
)
def test_malformed_token_output_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(AzureCallError) as caught:
        parse_token(text)
    assert caught.value.name == "azure-cli-failed"
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "name", "words"),
    [
        (
            CommandResult(127, err="env: 'az': No such file or directory"),
            "azure-cli-not-found",
            "is not installed",
        ),
        (
            CommandResult(1, err="ERROR: Please run 'az login' to setup account."),
            "azure-cli-not-signed-in",
            "ann is not signed in",
        ),
        (
            CommandResult(1, err="ERROR: AADSTS700082: The refresh token has expired. Trace ID: x\nInteractive..."),
            "azure-cli-not-signed-in",
            "AADSTS700082: The refresh token has expired",
        ),
        (
            CommandResult(1, err="Traceback\nERROR: The disk is full."),
            "azure-cli-failed",
            "no token: The disk is full.",
        ),
        (CommandResult(1), "azure-cli-failed", "no error message"),
    ],
)
def test_az_failure_is_explained_with_cause(answer: CommandResult, name: str, words: str) -> None:
    error = explain_cli_error(ME, answer)
    assert error.name == name
    assert words in error.message
