"""Tests of the ARM client of a configuration: user agent, token, request ID, proxy."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from aks_flex_node import __version__
from aks_flex_node.agent.identity import azure_sign_in
from tests.service.agent.daemon.fake_providers import forwards, serving
from tests.service.agent.daemon.test_hostile_providers import PASSWORD, proxy_login
from tests.service.agent.identity.test_credentials import bundle
from tests.service.lab.cloud_harness import CLUSTER
from tests.unit.agent.config.builders import load_plain

if TYPE_CHECKING:
    from aks_flex_node.settings.models import NodeConfig
    from tests.service.lab.cloud_harness import Cloud

NODE = f"{CLUSTER}/flexNodeConfig/edge-1"


def config(cloud: Cloud, azure: dict[str, Any] | None = None, **more: Any) -> NodeConfig:
    principal = cloud.directory.service_principal("edge", "right")
    given = {"clientId": principal.client_id, "clientSecret": "right"}
    where = {"authorityHost": cloud.url, **(azure or {})}
    document = json.loads(bundle(cloud, servicePrincipal=given, **where))
    return load_plain(json.dumps({**document, **more})).config


def test_arm_requests_carry_user_agent_token_and_request_id(cloud: Cloud) -> None:
    with azure_sign_in.open_arm(config(cloud)) as arm:
        heard = arm.get(NODE, "x")["headers"]
    assert heard["user-agent"] == f"aks-flex-node/{__version__}"
    assert heard["authorization"].startswith("Bearer ")
    assert heard["x-ms-client-request-id"]


def test_arm_reply_has_status_and_headers(cloud: Cloud) -> None:
    with azure_sign_in.open_arm(config(cloud)) as arm:
        reply = arm.send("GET", NODE, "x", headers={"x-answer": "201"})
        same = arm.send("GET", f"{cloud.url}{NODE}?api-version=x")
    assert (reply.status, reply.headers["etag"], same.status) == (201, '"17"', 200)


def test_configured_proxy_is_used_for_entra_and_arm(cloud: Cloud) -> None:
    seen: list[str] = []
    with serving(forwards(proxy_login(), seen), None) as port:
        of = config(cloud, proxy={"https": f"http://me:{PASSWORD}@127.0.0.1:{port}"})
        with azure_sign_in.open_arm(of) as arm:
            assert arm.get(NODE, "x")["path"] == f"{NODE}?api-version=x"
    connected = [head for head in seen if head.startswith(f"CONNECT {cloud.url.removeprefix('https://')} ")]
    assert len(connected) >= 2
    seen.clear()
    direct = config(cloud, proxy={"https": "http://127.0.0.1:9", "noProxy": ["localhost"]})
    with azure_sign_in.open_arm(direct) as arm:
        assert arm.get(NODE, "x")
