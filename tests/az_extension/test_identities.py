"""Tests of the identity options: the sources of the secret, and that it is never shown."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.az_extension.commands import ON, flex, ran, refused
from tests.service.rp.api.bodies import client_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.az_extension.harness import Site
    from tests.az_extension.warm_az import WarmAz
    from tests.azure_cli import Az

CLIENT = "11111111-2222-3333-4444-555555555555"
SECRET = "canary-8d3f-secret"
VARIABLE = {"AZURE_AKS_FLEX_NODE_CLIENT_SECRET": SECRET}
PRINCIPAL = ("--auth-method", "servicePrincipal", "--client-id", CLIENT, "--monitor")


def secret_of(site: Site, name: str) -> Any:
    return site.admin.credentials(name).json["servicePrincipal"]["clientSecret"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(0o600)
    file.write_text(f"{SECRET}\n")
    return file


def test_client_secret_is_read_from_file_stdin_or_environment(az: WarmAz, site: Site, name: str, file: Path) -> None:
    def create(ending: str) -> tuple[str, ...]:
        own = ("--auth-method", "servicePrincipal", "--client-id", client_of(f"{name}-{ending}"))
        return ("create", *own, "--name", f"{name}-{ending}")

    ran(az, *create("f"), "--client-secret-file", str(file))
    ran(az, *create("i"), "--client-secret-file", "-", input=SECRET)
    ran(az, *create("e"), env=VARIABLE)
    assert [secret_of(site, f"{name}-{each}") for each in "fie"] == [SECRET] * 3


def test_client_secret_from_stdin_applies_to_all_given_ids(az: WarmAz, site: Site, name: str) -> None:
    names = [f"{name}-{each}" for each in "abc"]
    for each in names:
        own = ("--auth-method", "servicePrincipal", "--client-id", client_of(each))
        ran(az, "create", *own, "--name", each, env=VARIABLE)
    ids = [site.admin.get(each).json["id"] for each in names]
    az.run("aks", "flex-node", "update", "--ids", *ids, "--client-secret-file", "-", input="another\n")
    assert [secret_of(site, each) for each in names] == ["another"] * 3


def test_at_file_content_is_not_shown_in_errors(az: WarmAz, site: Site, name: str, file: Path) -> None:
    """az replaces @FILE with the content of the file. Errors are written to logs and telemetry."""
    create = ("create", *PRINCIPAL, "--name", name)
    service = ("--rp-endpoint", site.service.connection.url)
    for words in (("--client-secret-file",), ("--file",), ("--kubelet-config",), (*service, "--rp-key-file")):
        message = refused(az, *create, *words, f"@{file}", env=VARIABLE)
        assert f"{words[-1]}: the file does not exist." in message
        assert "without a leading @" in message
        assert SECRET not in message


@pytest.mark.parametrize("also", [(), ("--client-secret-file", "-")])
def test_client_secret_prompt_on_terminal_does_not_echo(
    owner: Az, site: Site, name: str, also: tuple[str, ...]
) -> None:
    mine, theirs = pty.openpty()
    words = [str(owner.program), "aks", "flex-node", "create", *ON, *PRINCIPAL, *also, "--name", name, "-o", "none"]
    env = {**os.environ, **owner.environment}
    with subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env) as az:
        os.close(theirs)
        shown = b""
        while b"principal: " not in shown:
            shown += os.read(mine, 1024)
        os.write(mine, f"{SECRET}\n".encode())
        assert az.wait(60) == 0
        shown += os.read(mine, 1024)
    os.close(mine)
    assert SECRET.encode() not in shown
    assert secret_of(site, name) == SECRET


def test_missing_client_secret_without_terminal_names_alternatives(az: WarmAz, name: str) -> None:
    message = refused(az, "create", *PRINCIPAL, "--name", name)
    assert "--client-secret-file" in message
    assert "AZURE_AKS_FLEX_NODE_CLIENT_SECRET" in message


def test_client_secret_file_readable_by_others_is_refused(az: WarmAz, name: str, file: Path) -> None:
    file.chmod(0o644)
    words = (*PRINCIPAL, "--name", name, "--client-secret-file", str(file))
    assert f"chmod 600 {file}" in refused(az, "create", *words)


def test_debug_output_and_az_logs_contain_no_secret_or_config_url(owner: Az, site: Site, name: str) -> None:
    logged = {**VARIABLE, "AZURE_LOGGING_ENABLE_LOG_FILE": "true"}
    words = ("--name", name, "--output-url", "--debug", "--query", "properties.configUrl", "-o", "tsv")
    done = ran(owner, "create", *PRINCIPAL, *words, env=logged)
    url = done.out.strip()
    assert '"clientSecret": "***"' in done.err
    assert secret_of(site, name) == SECRET
    kept = [each.read_bytes().decode(errors="replace") for each in owner.folder.rglob("*") if each.is_file()]
    assert any("command args" in text for text in kept)
    for text in (done.err, *kept):
        assert SECRET not in text
        assert url.rpartition("/")[2] not in text


def test_client_secret_changes_only_when_new_one_is_given(az: WarmAz, site: Site, name: str, file: Path) -> None:
    ran(az, "create", *PRINCIPAL, "--name", name, env=VARIABLE)
    flex(az, "update", "--name", name, "--labels", "a=1")
    assert secret_of(site, name) == SECRET
    file.write_text("another")
    flex(az, "update", "--name", name, "--client-secret-file", str(file))
    assert secret_of(site, name) == "another"


def test_changing_auth_method_replaces_azure_auth_settings(az: WarmAz, site: Site, name: str) -> None:
    ran(az, "create", *PRINCIPAL, "--name", name, env=VARIABLE)
    words = ("--auth-method", "bootstrapToken", "--continuous-monitoring", "false")
    assert flex(az, "update", "--name", name, *words)["properties"]["azureAuth"] == {"method": "none"}
    managed = ("--auth-method", "managedIdentity", "--client-id", CLIENT, "--kubernetes-auth", "exec")
    properties = flex(az, "update", "--name", name, *managed)["properties"]
    assert properties["azureAuth"] == {"method": "managedIdentity", "managedIdentity": {"clientId": CLIENT}}
    assert properties["kubernetesAuth"] == {"useAzureAuth": True, "method": "exec"}


def test_option_not_used_by_auth_method_is_refused(az: WarmAz, name: str) -> None:
    assert "A node whose method is bootstrapToken does not use --client-id." in refused(
        az, "create", "--name", name, "--client-id", CLIENT
    )


def test_unused_identity_triggers_warning(az: WarmAz, name: str) -> None:
    words = ("--auth-method", "managedIdentity", "--client-id", CLIENT)
    done = ran(az, "create", "--name", name, *words)
    assert "The identity of this node is not used" in done.err
