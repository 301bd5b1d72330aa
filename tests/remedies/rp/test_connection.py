"""The remedies of errors in the connection of a command to its service."""

from __future__ import annotations

import os
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


@pytest.mark.parametrize(
    ("error", "options"),
    [
        ("service-not-local", ""),
        ("service-url-invalid", "--url http://127.0.0.1:1"),
        ("service-url-invalid", "--url 127.0.0.1:1"),
        ("service-untrusted", "--url {url} --token-file {token}"),
        ("service-untrusted", "--url https://127.1:{port} --ca {ca} --token-file {token}"),  # the same address
        ("ca-file-unreadable", "--url {url} --ca /nowhere --token-file {token}"),
        ("access-token-required", "--url {url} --ca {ca}"),
        ("cluster-id-required", "--url {url} --ca {ca} --token-file {token} --cluster plant"),
    ],
)
def test_service_that_is_named_wrongly_is_not_used(
    somebody: Person, shared: Running, url: str, ca: str, token: Path, error: str, options: str
) -> None:
    port = shared.service.settings.port
    fails(somebody, error, *LIST, *options.format(url=url, ca=ca, token=token, port=port).split())


@pytest.mark.parametrize("content", ["", "Bearer {}\n", "{0}\n{0}\n"])
def test_file_with_more_than_a_token_is_refused(user: Person, token: Path, content: str) -> None:
    private(token, content.format(token.read_text().strip()))
    fails(user, "access-token-invalid", *LIST, "--token-file", str(token))


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


class SignIn(Handler):
    """The sign-in page of a proxy, which answers instead of the service."""

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        self.respond(200, b"<html>Sign in</html>")


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

    assert our_command("service-unreachable", "serve") == ("serve",)
    with serving(made, clusters):  # what this command runs
        person.does(*listed, env=environment)


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the owner of files")
def test_files_of_the_service_are_refused_to_other_users(shared: Running) -> None:
    shutil.chown(shared.room, "nobody")
    # As root, but with the access of its user ID alone.
    limited = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", sys.executable, "-c")
    program = "from aks_flex_rp.cli import main; main()"
    words = [*limited, program, *LIST, "--state", str(shared.room)]
    try:
        refused = subprocess.run(words, check=False, capture_output=True, text=True, timeout=120)
        assert "\n  permission-denied\n" in refused.stderr, refused.stderr
    finally:
        shutil.chown(shared.room, "root")
