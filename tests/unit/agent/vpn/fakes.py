"""A simulated Azure with a cluster, its network and created resources; operations complete after some polls."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aks_flex_node.agent.vpn.client_certificate import ClientCertificate, root_data
from aks_flex_node.agent.vpn.dependencies import VpnEnvironment
from aks_flex_node.agent.vpn.openvpn import TunnelState
from aks_flex_node.azure.arm import ArmClient, ArmReply, AzureCallError
from tests.unit.agent.config.builders import CLUSTER_ID, PEM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from aks_flex_node.settings.models import NodeConfig

GROUP = "/subscriptions/sub-1/resourceGroups/group-1/providers/Microsoft.Network"
NETWORK = f"{GROUP}/virtualNetworks/net"
GATEWAY = f"{GROUP}/virtualNetworkGateways/aks-flex-node"
ADDRESS = f"{GROUP}/publicIPAddresses/aks-flex-node-address"
SUBNET = f"{NETWORK}/subnets/GatewaySubnet"
OPERATIONS = "https://azure.example/operations"
LINK = "https://storage.example/profile.zip?sig=secret"
API_NAME = "api.private.example"

PROFILE = f"""\
client
remote gateway.example 443
verify-x509-name 'gateway.example' name
remote-cert-tls server
dev tun
proto tcp
auth SHA256
cipher AES-256-GCM
tls-version-min 1.2
key-direction 1
<ca>
{PEM}</ca>
<tls-auth>
-----BEGIN OpenVPN Static key V1-----
00112233445566778899aabbccddeeff
-----END OpenVPN Static key V1-----
</tls-auth>
<cert>
$CLIENTCERTIFICATE
</cert>
<key>
$PRIVATEKEY
</key>
"""

Document = dict[str, Any]


def refusal(status: int, code: str) -> AzureCallError:
    return AzureCallError(
        "arm-request-rejected",
        f"Azure rejected the request ({code}).",
        "",
        retryable=status in {429, 503},
        status=status,
        code=code,
    )


def start() -> dict[str, Document]:
    subnet = {"id": f"{NETWORK}/subnets/nodes", "name": "nodes", "properties": {"addressPrefix": "10.1.0.0/25"}}
    network = {
        "addressSpace": {"addressPrefixes": ["10.1.0.0/24"]},
        "dhcpOptions": {"dnsServers": ["10.1.0.4"]},
        "subnets": [subnet],
    }
    cluster = {
        "agentPoolProfiles": [{"vnetSubnetID": subnet["id"]}],
        "networkProfile": {"podCidr": "10.244.0.0/16", "serviceCidr": "10.0.0.0/16"},
        "privateFQDN": API_NAME,
    }
    return {
        CLUSTER_ID: {"id": CLUSTER_ID, "properties": cluster},
        NETWORK: {"id": NETWORK, "location": "westeurope", "properties": network},
    }


@dataclass
class FakeAzure(ArmClient):
    """A simulated client. `looks` is the number of polls before an operation completes."""

    documents: dict[str, Document] = field(default_factory=start)
    looks: int = 1
    profiles: str = f"{GATEWAY}/generatevpnprofile"
    fail: str = ""  # the error code of the next gateway operation
    refusals: list[AzureCallError] = field(default_factory=list)  # raised before any change, one for each call
    calls: list[str] = field(default_factory=list)
    changed: Callable[[], None] = lambda: None
    meanwhile: list[Callable[[], None]] = field(default_factory=list)  # called before a change
    before: dict[str, Callable[[], None]] = field(default_factory=dict)  # called before a change of this resource

    def send(  # no request has a query
        self,
        method: str,
        where: str,
        api_version: str = "",
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        **_: str,
    ) -> ArmReply:
        self.calls.append(f"{method} {where.removeprefix(GROUP)}")
        if self.refusals:
            raise self.refusals.pop(0)
        if where.startswith(OPERATIONS):
            return self._operation(where)
        assert api_version
        if method == "GET":
            self._go_on(where)
            return ArmReply(200, copy.deepcopy(self._known(where)))
        answers = {"PUT": self._put, "DELETE": self._delete, "POST": self._post}
        return answers[method](where, body, (headers or {}).get("If-Match", ""))

    def _go_on(self, where: str) -> None:
        """Advances a running operation with each request."""
        document = self.documents.get(where, {})
        if document.get("left", 0) > 0:
            document["left"] -= 1
            if not document["left"]:
                document["properties"]["provisioningState"] = "Succeeded"
            self.changed()

    def count(self, call: str) -> int:
        return self.calls.count(call)

    def roots(self) -> list[str]:
        clients = self.documents[GATEWAY]["properties"]["vpnClientConfiguration"]
        return [each["name"] for each in clients.get("vpnClientRootCertificates", [])]

    def _known(self, where: str) -> Document:
        if "/subnets/" in where:
            for each in self.documents[NETWORK]["properties"]["subnets"]:
                if each["id"] == where:
                    return dict(each)
        if where not in self.documents:
            raise refusal(404, "ResourceNotFound")
        return self.documents[where]

    def _put(self, where: str, body: Document, if_match: str) -> ArmReply:
        while self.meanwhile:
            self.meanwhile.pop(0)()
        self.before.pop(where, lambda: None)()
        before = self.documents.get(where)
        if if_match and (before is None or before["etag"] != if_match):
            raise refusal(412, "PreconditionFailed")
        number = int(str((before or {}).get("etag", "0")).strip('"')) + 1
        made = {**copy.deepcopy(body), "id": where, "etag": f'"{number}"'}
        gateway = where == GATEWAY
        made["properties"]["provisioningState"] = "Updating" if gateway else "Succeeded"
        if "/subnets/" in where:
            self.documents[NETWORK]["properties"]["subnets"].append({**made, "name": where.rpartition("/")[2]})
        else:
            self.documents[where] = made
        if gateway:
            made["left"], made["fail"] = self.looks, self.fail
            self.fail = ""
        self.changed()
        link = {"azure-asyncoperation": f"{OPERATIONS}{where}", "retry-after": "7"}
        return ArmReply(200 if before else 201, copy.deepcopy(made), link)

    def _delete(self, where: str, _: Any, __: str) -> ArmReply:
        if "/subnets/" in where:
            subnets = self.documents[NETWORK]["properties"]["subnets"]
            self.documents[NETWORK]["properties"]["subnets"] = [each for each in subnets if each["id"] != where]
        else:
            del self.documents[where]
        self.changed()
        return ArmReply(202, None, {"azure-asyncoperation": f"{OPERATIONS}{where}"})

    def _post(self, where: str, _: Any, __: str) -> ArmReply:
        assert where == self.profiles
        return ArmReply(202, None, {"location": f"{OPERATIONS}/profile"})

    def _operation(self, where: str) -> ArmReply:
        resource = where.removeprefix(OPERATIONS)
        if resource == "/profile":
            return ArmReply(200, LINK)
        document = self.documents.get(resource, {})
        if document.get("left", 0) > 0:
            document["left"] -= 1
            self.changed()
            return ArmReply(200, {"status": "InProgress"}, {"retry-after": "7"})
        failed = document.get("fail")
        if document:
            document["properties"]["provisioningState"] = "Failed" if failed else "Succeeded"
            self.changed()
        if failed:
            return ArmReply(200, {"status": "Failed", "error": {"code": failed, "message": "No room."}})
        # A removed resource cannot be polled.
        return ArmReply(200, {"status": "Succeeded"})


def archive(text: str = PROFILE, name: str = "OpenVPN/vpnconfig.ovpn") -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as files:
        files.writestr(name, text)
    return packed.getvalue()


class Clock:
    """A clock that advances on sleep."""

    def __init__(self) -> None:
        self.seconds = 1_800_000_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


def quick_pair(node: str) -> ClientCertificate:
    """Returns the same certificate each time, without a private key."""
    pem = (PEM * 2).encode()
    return ClientCertificate(f"aks-flex-node-{node}-1", root_data(pem), pem)


def vpn_environment(azure: FakeAzure, clock: Clock, **changes: Any) -> VpnEnvironment:
    @contextlib.contextmanager
    def sender(_: NodeConfig) -> Iterator[ArmClient]:
        yield azure

    up = TunnelState("CONNECTED", 1.0, "192.168.100.2")
    told: dict[str, Any] = {
        "operator_client": sender,
        "download": lambda _, __: archive(),
        "make_certificate": quick_pair,
        "read_tunnel": lambda: up,
        "resolve": lambda _, __: "10.1.0.10",
        "accepts_connections": lambda _, __: True,
        "sleep": clock.sleep,
        "clock": clock.now,
        "now": clock.now,
    }
    return VpnEnvironment(**{**told, **changes})


def saved(documents: dict[str, Document]) -> str:
    return json.dumps(documents, indent=1, sort_keys=True)
