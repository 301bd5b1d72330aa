"""Follows the remedies of configuration URLs, with a resource provider."""

from __future__ import annotations

import itertools
import json
import shlex
import socketserver
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aks_flex_node.agent.config.remote import fetch_config
from aks_flex_node.agent.http.download_options import DownloadOptions
from aks_flex_node.api import config_urls
from aks_flex_node.api.machine_identity import MachineIdentity
from aks_flex_node.errors import ConfigError
from tests.client_certificates import client_pem
from tests.node_key_client import HeldKey
from tests.remedies.catalogue import advice, command
from tests.service.agent.bundle_servers import Answer, bundle_server
from tests.service.agent.config.test_config_url import Tunnel
from tests.service.ports import free_port
from tests.service.rp.api.fake_clusters import SEED
from tests.service.rp.api.keyed_nodes import observe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.remedies.agent.sandbox import Outcome, Sandbox
    from tests.service.rp.api.service_harness import Running
    from tests.service.rp.cli.cli_harness import Person

NUMBERS = itertools.count(1)
ONLY = ("--only", "credentials", "--skip-phase", "preflight", "--set", "artifacts.attempts=1")
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"


@pytest.fixture
def name() -> str:
    return f"edge-{next(NUMBERS)}"


def types(provider: Person, words: Sequence[str]) -> str:
    """Runs a command of a remedy where the resource provider runs; returns its output."""
    assert words[0] == "aks-flex-rp", words
    return provider.does(*words[1:]).out


def url_of(printed: str) -> str:
    """Returns the URL in the join command that the resource provider prints."""
    echo, url, *words = shlex.split(printed)
    assert [echo, *words] == ["echo", "|", "aks-flex-node", "agent", "--config-url-file", "-"]
    return url


@pytest.fixture
def url(provider: Person, name: str) -> str:
    return url_of(provider.does("node", "create", "--name", name, "--join-command").out)


def join(machine: Sandbox, url: str, *words: str) -> Outcome:
    return machine.flex("bootstrap", *ONLY, "--config-url", url, *words)


@pytest.mark.remedy("node-on-another-machine")
def test_second_machine_gets_a_node_of_its_own_or_replaces(
    machine: Sandbox, service: Running, provider: Person, name: str
) -> None:
    url = url_of(provider.does("node", "create", "--name", name, "--no-monitor", "--join-command").out)
    first, second = (MachineIdentity(each * 32, f"edge-{each}", "10.0.0.1", "Ubuntu") for each in "12")
    fetch_config(config_urls.parse(url), DownloadOptions(attempts=1), machine=first, prove=HeldKey().proof)
    observe(service, name, first, SEED)
    new = url_of(provider.does("node", "join-command", "--name", name).out)
    with pytest.raises(ConfigError) as refused:
        fetch_config(config_urls.parse(new), DownloadOptions(attempts=1), machine=second, prove=HeldKey().proof)
    assert refused.value.name == "node-on-another-machine"

    create = command("node-on-another-machine", "aks-flex-rp node create", **{"OTHER-NAME": f"{name}-b"})
    assert join(machine, url_of(types(provider, create)), "--dry-run").code == 0
    replace = command("node-on-another-machine", "aks-flex-rp node join-command", NAME=name)
    assert join(machine, url_of(types(provider, replace))).code == 0


@pytest.mark.remedy("config-url-taken")
def test_url_that_another_key_has_is_revoked_or_left_to_it(
    machine: Sandbox, provider: Person, name: str, url: str
) -> None:
    first, other = MachineIdentity("1" * 32, "edge-a", "10.0.0.1", "Ubuntu"), HeldKey()
    fetch_config(config_urls.parse(url), DownloadOptions(attempts=1), machine=first, prove=other.proof)
    assert join(machine, url).error == "config-url-taken"
    assert machine.sh("ls -A /var/lib/aks-flex-node 2>/dev/null || true") == ""

    found = provider.does("audit", "--what", "configUrl.reused", "--json").out
    assert other.thumbprint in found
    create = command("config-url-taken", "aks-flex-rp node create", **{"OTHER-NAME": f"{name}-b"})
    assert join(machine, url_of(types(provider, create)), "--dry-run").code == 0
    machine.reset()
    replace = command("config-url-taken", "aks-flex-rp node join-command", NAME=name)
    assert join(machine, url_of(types(provider, replace))).code == 0


@pytest.mark.remedy("node-key-not-rotated")
def test_revoked_key_is_replaced_by_a_new_join_command(
    machine: Sandbox, provider: Person, name: str, url: str
) -> None:
    assert join(machine, url).code == 0
    rotate = command("node-key-not-rotated", "aks-flex-node node-key rotate")
    assert machine.types(rotate).code == 0
    provider.does("node", "revoke-key", "--name", name)
    refused = machine.types(rotate)
    assert refused.error == "node-key-not-rotated"
    assert "was revoked" in refused.err

    again = command("node-key-not-rotated", "aks-flex-rp node join-command", NAME=name)
    assert join(machine, url_of(types(provider, again))).code == 0
    assert machine.types(rotate).code == 0


@pytest.mark.remedy("config-url-expired")
def test_replaced_url_is_created_again(machine: Sandbox, provider: Person, name: str, url: str) -> None:
    again = command("config-url-expired", "aks-flex-rp node join-command", NAME=name)
    types(provider, again)
    assert join(machine, url).error == "config-url-expired"

    assert machine.types(command("config-url-expired", "aks-flex-node status")).code == 0
    other = command("config-url-expired", "aks-flex-rp node create", **{"OTHER-NAME": f"{name}-b"})
    assert join(machine, url_of(types(provider, other)), "--dry-run").code == 0
    assert join(machine, url_of(types(provider, again))).code == 0


@pytest.mark.remedy("config-url-untrusted")
def test_url_with_another_pin_is_requested_again(machine: Sandbox, provider: Person, name: str, url: str) -> None:
    other = f"{url.partition('#')[0]}#ca=sha256:{'0' * 64}"
    assert join(machine, other).error == "config-url-untrusted"

    request = command("config-url-untrusted", "aks-flex-rp node join-command", NAME=name)
    assert join(machine, url_of(types(provider, request))).code == 0


@contextmanager
def proxy(port: int) -> Iterator[str]:
    """Yields a proxy through which all connections reach this port."""

    def target(_: Tunnel, host: str, __: int) -> tuple[str, int]:
        return host, port

    through = type("Through", (Tunnel,), {"asked": [], "target": target})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), through) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield str(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.remedy("config-url-unreachable")
def test_server_is_reached_through_a_proxy(machine: Sandbox, url: str) -> None:
    port = config_urls.parse(url).port
    blocked = url.replace(f":{port}/", f":{free_port()}/")
    assert join(machine, blocked).error == "config-url-unreachable"

    with proxy(port) as there:
        words = command("config-url-unreachable", "--set proxy.https", HOST="127.0.0.1", PORT=there)
        assert join(machine, blocked, *words).code == 0


def test_settings_of_the_machine_stay_with_a_managed_node(
    machine: Sandbox, provider: Person, name: str, url: str
) -> None:
    def stored() -> dict[str, Any]:
        return dict(json.loads(machine.sh("cat /var/lib/aks-flex-node/current-config.json"))["config"])

    machine.write("/etc/aks-flex-node/config.yaml", "npd: {enabled: false}\nnode: {maxPods: 50}\n")
    joined = join(machine, url, "--set", "proxy.http=http://proxy.example:3128")
    assert joined.code == 0, joined.err
    assert "The provider decides node.maxPods, so /etc/aks-flex-node/config.yaml does not." in joined.err
    assert (stored()["npd"]["enabled"], stored()["proxy"]) == (False, {"http": "http://proxy.example:3128"})
    assert stored()["node"]["maxPods"] == 110

    machine.sh("rm /etc/aks-flex-node/config.yaml")
    assert machine.flex("bootstrap", *ONLY, "--set", "proxy.http=", "--set", "node.ip=10.0.0.9").code == 0
    assert ("proxy" in stored(), stored()["node"]["ip"]) == (False, "10.0.0.9")

    assert join(machine, url_of(provider.does("node", "join-command", "--name", name).out)).code == 0
    assert (stored()["npd"]["enabled"], stored()["node"]["ip"]) == (False, "10.0.0.9")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        pytest.param(
            Answer(302, headers={"Location": "https://portal.example/"}),
            "config-url-rejected",
            marks=pytest.mark.remedy("config-url-rejected"),
            id="config-url-rejected",
        ),
        pytest.param(
            Answer(200, b"<html>Sign in</html>"),
            "config-bundle-invalid",
            id="config-bundle-invalid",
        ),
    ],
)
def test_url_of_the_provider_replaces_one_of_another_server(
    machine: Sandbox, tmp_path: Path, url: str, answer: Answer, error: str
) -> None:
    with bundle_server(tmp_path) as portal:
        portal.answers["/configs/one"] = [answer]
        assert join(machine, portal.url("/configs/one")).error == error

    assert join(machine, url).code == 0


@pytest.mark.remedy("config-node-mismatch")
def test_node_uses_its_own_url_or_is_removed_first(machine: Sandbox, provider: Person, name: str, url: str) -> None:
    other = url_of(provider.does("node", "create", "--name", f"{name}-b", "--join-command").out)
    assert join(machine, url).code == 0
    machine.write(CERTIFICATE, client_pem())  # the kubelet has joined
    assert join(machine, other).error == "config-node-mismatch"

    advice("config-node-mismatch", "Use the URL of this node")
    assert join(machine, url).code == 0
    assert machine.types([*command("config-node-mismatch", "aks-flex-node unbootstrap"), "--yes"]).code == 0
    again = command("config-node-mismatch", "aks-flex-rp node join-command", NAME=f"{name}-b")
    assert join(machine, url_of(types(provider, again))).code == 0


@pytest.mark.remedy("stored-config-damaged")
def test_damaged_stored_configuration_is_replaced_by_a_new_url(
    machine: Sandbox, provider: Person, name: str, url: str
) -> None:
    assert join(machine, url).code == 0
    for file in ("current-config.json", "current-config.copy.json"):
        machine.write(f"/var/lib/aks-flex-node/{file}", "")
    assert machine.flex("plan").error == "stored-config-damaged"

    again = command("stored-config-damaged", "aks-flex-rp node join-command", NAME=name)
    assert join(machine, url_of(types(provider, again))).code == 0
    assert machine.flex("plan").error == ""
