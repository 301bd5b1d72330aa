"""Tests of the real token process, `aks-flex-node azure-token`, with the lab's Entra ID."""

from __future__ import annotations

import base64
import json
import os
import signal
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_node.agent.provider.provider_tokens import ProviderTokens, SignInError
from aks_flex_node.host import processes
from tests.remedies.catalogue import advice
from tests.service.agent.daemon.conftest import OLD
from tests.service.agent.daemon.fake_providers import answer, forwards, hangs, says, serving
from tests.service.agent.daemon.harness import PROGRAM, SOON
from tests.service.agent.daemon.test_hostile_providers import PASSWORD, proxy_login
from tests.service.ports import free_port
from tests.unit.agent.config.builders import CLUSTER_ID

if TYPE_CHECKING:
    import socket

    from aks_flex_lab.entra.directory import EntraPrincipal
    from aks_flex_lab.pki import CertificateAuthority, CertificatePair
    from aks_flex_node.errors import FlexError
    from tests.service.lab.cloud_harness import Cloud


def bundle(
    cloud: Cloud, identity: EntraPrincipal, secret: str = OLD, *, authority: str = "", trust: bool = True
) -> str:
    ca = {"caCertData": base64.b64encode(Path(cloud.ca).read_bytes()).decode()} if trust else {}
    azure = {
        "targetCluster": {"resourceId": CLUSTER_ID},
        "servicePrincipal": {"clientId": identity.client_id, "clientTenant": TENANT_ID, "clientSecret": secret},
        "resourceManager": cloud.url,
        "authorityHost": authority or cloud.url,
        **ca,
    }
    return json.dumps({"config": {"azure": azure, "provider": {"audience": cloud.url}}, "configVersion": "1"})


def refusal(text: str) -> FlexError:
    with pytest.raises(SignInError) as caught:
        ProviderTokens(PROGRAM, lambda: text).value()
    assert OLD not in f"{caught.value!r} {caught.value}"
    return caught.value.error


def test_valid_secret_yields_provider_token(cloud: Cloud, identity: EntraPrincipal) -> None:
    answer = processes.run((PROGRAM, "azure-token"), seconds=60, text=bundle(cloud, identity).encode())
    told = json.loads(answer.out)
    claims = jwt.decode(told["token"], options={"verify_signature": False, "verify_aud": False})
    assert (claims["aud"].rstrip("/"), claims["appid"]) == (cloud.url, identity.client_id)
    assert 3000 < told["seconds"] <= 3600
    assert (answer.code, answer.err) == (0, "")


@pytest.mark.remedy("sign-in-unreachable")
def test_sign_in_succeeds_after_the_proxy_is_corrected(cloud: Cloud, identity: EntraPrincipal) -> None:
    document: dict[str, Any] = json.loads(bundle(cloud, identity))
    document["config"]["proxy"] = {"https": f"http://127.0.0.1:{free_port()}"}
    tokens = ProviderTokens(PROGRAM, lambda: json.dumps(document))
    with pytest.raises(SignInError) as caught:
        tokens.value()
    assert caught.value.error.name == "sign-in-unreachable"

    advice(
        "sign-in-unreachable", "Correct the network, `proxy.https` or the clock. The daemon retries automatically."
    )
    document["config"]["proxy"] = {}
    assert tokens.value()


@pytest.mark.parametrize("text", ["nonsense {", "[]"])
def test_invalid_config_is_reported(text: str) -> None:
    assert refusal(text).name.startswith("config-")


def test_entra_is_reached_through_proxy_with_password(
    cloud: Cloud, identity: EntraPrincipal, authority: CertificateAuthority
) -> None:
    seen: list[str] = []
    pair = authority.issue("entra", "entra.example", names=("entra.example",))
    no = answer("400 Bad Request", b'{"error": "invalid_client", "error_description": "AADSTS7000215: No."}')
    with serving(says(no), pair) as entra, serving(forwards(proxy_login(), seen, entra), None) as proxy:
        document: dict[str, Any] = json.loads(bundle(cloud, identity, authority="https://entra.example"))
        document["config"]["proxy"] = {"https": f"http://me:{PASSWORD}@127.0.0.1:{proxy}"}
        error = refusal(json.dumps(document))
    assert seen
    assert seen[0].startswith("CONNECT entra.example:443")
    assert PASSWORD not in f"{error.message} {error.hint}"


def children() -> list[Path]:
    """Returns the token processes of this process."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words, parent = (
                (entry / "cmdline").read_bytes(),
                (entry / "stat").read_text().rpartition(")")[2].split()[1],
            )
        except OSError:
            continue
        if b"azure-token" in words and int(parent) == os.getpid():
            found.append(entry)
    return found


def test_token_process_shows_no_secret_in_arguments_or_environment(
    cloud: Cloud, identity: EntraPrincipal, pair: CertificatePair
) -> None:
    """Entra ID hangs, so that the process can be inspected."""
    asked = threading.Event()

    def hang(link: socket.socket, over: threading.Event) -> None:
        asked.set()
        hangs(link, over)

    with serving(hang, pair) as port:
        tokens = ProviderTokens(PROGRAM, lambda: bundle(cloud, identity, authority=f"https://localhost:{port}"))
        with ThreadPoolExecutor(1) as pool:
            value = pool.submit(tokens.value)
            assert asked.wait(SOON)
            [child] = children()
            shown = (child / "cmdline").read_bytes() + (child / "environ").read_bytes()
            files = [os.readlink(each) for each in (child / "fd").iterdir()]  # noqa: PTH115 - they are another's
            os.kill(int(child.name), signal.SIGKILL)
            with pytest.raises(SignInError):
                value.result()
    assert b"azure-token" in shown
    assert OLD.encode() not in shown
    assert not [path for path in files if path.startswith(tempfile.gettempdir())]
