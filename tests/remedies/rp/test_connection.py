"""The remedies of errors in the connection of a command to its service."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.remedies.catalogue import advice
from tests.remedies.rp.harness import fails, our_command, private
from tests.service.http_servers import Handler, listening
from tests.service.ports import free_port
from tests.service.rp.api import callers
from tests.service.rp.api.fake_clusters import PLANT
from tests.service.rp.api.service_harness import settings
from tests.service.rp.api.tenants import running_tenant
from tests.service.rp.cli.cli_harness import Person
from tests.service.rp.cli.conftest import add_clusters, serving
from tests.unit.rp.auth.token_issuer import AUDIENCE

if TYPE_CHECKING:
    from pathlib import Path

    from aks_flex_lab.pki import CertificateAuthority
    from aks_flex_rp.nodes.context import ClusterInfo
    from aks_flex_rp.settings import ServiceSettings
    from tests.service.rp.api.service_harness import Running

LIST = ("node", "list", "--cluster", str(PLANT))


@pytest.fixture
def url(shared: Running) -> str:
    return shared.service.settings.origin


@pytest.fixture
def ca(shared: Running) -> str:
    return str(shared.room / "tls/ca.crt")


@pytest.fixture
def token(shared: Running, tmp_path: Path) -> Path:
    return private(tmp_path / "token", (shared.room / "admin.key").read_text())


def test_remote_service_is_used_with_a_token(somebody: Person, url: str, ca: str, token: Path) -> None:
    remote = (*LIST, "--url", url, "--ca", ca)
    fails(somebody, "access-token-required", *remote)

    somebody.does(*remote, "--token-file", str(token))
    somebody.does(*remote, env={"AKS_FLEX_RP_TOKEN_FILE": str(token)})
    somebody.does(*remote, "--token-file", "-", stdin=token.read_text())


def test_token_for_the_service_is_used_instead_of_one_for_azure(
    somebody: Person, authority: CertificateAuthority, clusters: list[ClusterInfo], tmp_path: Path
) -> None:
    """A user hands the service a token with which it could act as the user in Azure."""
    token = tmp_path / "token"
    with running_tenant(authority) as tenant:
        made = settings(tmp_path / "state", auth={"tenants": [tenant.settings], "roles": callers.GRANTS})
        add_clusters(made, clusters)
        with serving(made, clusters) as service:
            ca = str(service.room / "tls" / "ca.crt")
            remote = (*LIST, "--url", made.origin, "--ca", ca, "--token-file", str(token))
            private(token, tenant.application(callers.READER, aud="https://management.azure.com").split()[1])
            fails(somebody, "access-token-for-azure", *remote)

            private(token, tenant.application(callers.READER, aud=AUDIENCE).split()[1])
            somebody.does(*remote)


def test_file_with_only_the_token_is_accepted(user: Person, token: Path) -> None:
    right = token.read_text().strip()
    for wrong in ("", f"Bearer {right}\n", f"{right}\n{right}\n"):
        private(token, wrong)
        fails(user, "access-token-invalid", *LIST, "--token-file", str(token))

    private(token, f"{right}\n")
    user.does(*LIST, "--token-file", str(token))


def test_ca_of_service_is_copied_and_named(somebody: Person, url: str, ca: str, token: Path) -> None:
    remote = (*LIST, "--url", url, "--token-file", str(token))
    fails(somebody, "service-untrusted", *remote)
    copy = token.with_name("ca.crt")
    [option] = {"--ca"}
    fails(somebody, "ca-file-unreadable", *remote, option, str(copy))

    shutil.copy(ca, copy)
    somebody.does(*remote, option, str(copy))


def test_host_name_of_public_url_is_used(somebody: Person, shared: Running, ca: str, token: Path) -> None:
    port = shared.service.settings.port
    how = ("--ca", ca, "--token-file", str(token))
    fails(somebody, "service-untrusted", *LIST, "--url", f"https://127.1:{port}", *how)  # the same address

    somebody.does(*LIST, "--url", shared.service.settings.public_url or "", *how)


def test_remote_service_is_given_the_complete_cluster_id(somebody: Person, url: str, ca: str, token: Path) -> None:
    remote = ("node", "list", "--url", url, "--ca", ca, "--token-file", str(token))
    fails(somebody, "cluster-id-required", *remote, "--cluster", "plant")

    option = "--cluster"
    somebody.does(*remote, option, str(PLANT))
    variable = "AKS_FLEX_RP_CLUSTER"
    somebody.does(*remote, env={variable: str(PLANT)})


def test_complete_id_identifies_a_cluster(user: Person) -> None:
    for words in ((), ("--cluster", "moon")):
        fails(user, "cluster-not-found", "node", "list", *words)

    user.does(*LIST)


def test_service_is_named_by_directory_or_url(somebody: Person, user: Person, url: str, ca: str, token: Path) -> None:
    fails(somebody, "service-not-local", *LIST)

    option = "--state"
    somebody.does(*LIST, option, str(user.state))
    options = ["--url", "--ca"]
    options += ["--token-file"]
    somebody.does(*LIST, *(word for pair in zip(options, (url, ca, str(token)), strict=True) for word in pair))


def test_url_of_service_has_the_form_of_the_remedy(somebody: Person, url: str, ca: str, token: Path) -> None:
    how = ("--ca", ca, "--token-file", str(token))
    for wrong in (url.replace("https", "http"), url.removeprefix("https://")):
        fails(somebody, "service-url-invalid", *LIST, "--url", wrong, *how)

    example = "https://flex.example.com:8443"
    assert re.sub(r"//.*:", "//127.0.0.1:", example).rpartition(":")[0] == url.rpartition(":")[0]
    somebody.does(*LIST, "--url", url, *how)
    variable = "AKS_FLEX_RP_URL"
    somebody.does(*LIST, *how, env={variable: url})


class SignIn(Handler):
    """The sign-in page of a proxy, which answers instead of the service."""

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Sign in</html>")


@pytest.mark.remedy("service-unreachable")
def test_url_is_corrected_when_another_server_answers(
    somebody: Person, url: str, ca: str, token: Path, authority: CertificateAuthority
) -> None:
    how = ("--token-file", str(token))
    with listening(SignIn, authority.issue("localhost", "localhost", names=("localhost",))) as other:
        trust = ("--ca", str(authority.certificate))
        fails(somebody, "service-unreachable", *LIST, "--url", other, *trust, *how)
    fails(somebody, "service-unreachable", *LIST, "--url", f"https://127.0.0.1:{free_port()}", "--ca", ca, *how)

    advice("service-unreachable", "correct `--url`")
    somebody.does(*LIST, "--url", url, "--ca", ca, *how)


@pytest.mark.remedy("service-unreachable")
def test_command_succeeds_when_service_is_started(made: ServiceSettings, clusters: list[ClusterInfo]) -> None:
    person = Person(made.state_dir)
    listed = (*LIST, "--state", str(made.state_dir))
    environment = {"AKS_FLEX_RP_LISTEN": made.listen, "AKS_FLEX_RP_STATE": ""}
    fails(person, "service-not-local", *listed, env=environment)
    add_clusters(made, clusters)
    person.does("init")
    fails(person, "service-unreachable", *listed, env=environment)

    [start, *_] = {*our_command("service-unreachable", "serve"), "serve"}
    assert start == "serve"
    with serving(made, clusters):  # what this command runs
        person.does(*listed, env=environment)


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of files")
OTHER = "nobody"
LIMITED = (
    "setpriv",
    "--bounding-set=-dac_override,-dac_read_search",
)  # root, but with the access of its user ID alone
PROGRAM = (sys.executable, "-c", "from aks_flex_rp.cli import main; main()")


def run_limited(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command as a user who cannot read the files of others."""
    done = [*LIMITED, *PROGRAM, *words]
    return subprocess.run(done, check=False, capture_output=True, text=True, timeout=120)


@needs_root
def test_files_of_service_are_read_as_root_or_with_https(shared: Running, ca: str, token: Path) -> None:
    user = Person(shared.room)
    listed = ("node", "list", "--cluster", str(PLANT))
    copy = token.with_name("ca.crt")
    shutil.copy(ca, copy)
    shutil.chown(shared.room, OTHER)
    try:
        refused = run_limited(*listed, "--state", str(shared.room))
        assert "\n  permission-denied: " in refused.stderr, refused.stderr

        *_, program, words, option, _ = [
            "sudo",
            "-u",
            "aks-flex-rp",
            "aks-flex-rp",
            "…",
            "--state",
            "/var/lib/aks-flex-rp",
        ]
        assert (program, words, option) == ("aks-flex-rp", "node", "--state")
        user.does(*listed, option, str(shared.room), env={"AKS_FLEX_RP_STATE": ""})
        [url, token_file] = ["--url", "--token-file"]
        remote = (url, shared.service.settings.origin, token_file, str(token), "--ca", str(copy))
        done = run_limited(*listed, *remote)
        assert done.returncode == 0, done.stderr
    finally:
        shutil.chown(shared.room, "root")


@needs_root
def test_secret_file_is_read_after_chown(somebody: Person) -> None:
    somebody.does("init")
    key = somebody.state / "keys"
    shutil.chown(key, OTHER)
    listed = ("keys", "list", "--state", str(somebody.state))
    refused = run_limited(*listed)
    assert "\n  private-file-unreadable: " in refused.stderr, refused.stderr

    subprocess.run(["chown", "root", str(key)], check=True)
    assert run_limited(*listed).returncode == 0
