"""Tests of a machine that enrols: its facts, and waiting for an approval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aks_flex_node.agent.bootstrap.sources.enrolment import (
    LONGEST_PAUSE,
    approval_message,
    parse_mac_addresses,
    read_facts,
    wait_for_approval,
)
from aks_flex_node.agent.bootstrap.sources.selection import skip_enrolment
from aks_flex_node.agent.config.refusals import ApprovalPendingError, parse_pending
from aks_flex_node.agent.config.remote import ConfigBundle
from aks_flex_node.agent.context import ConfigSelection
from aks_flex_node.agent.identity.node_key import NodeKeyStore
from aks_flex_node.agent.paths import CURRENT_CONFIG
from aks_flex_node.agent.progress import ProgressReporter
from aks_flex_node.agent.reconcile import node_state
from aks_flex_node.agent.reconcile.node_state import NodeState
from aks_flex_node.api import config_urls
from aks_flex_node.api.enrolments import parse_facts
from aks_flex_node.errors import ConfigError
from aks_flex_node.host.actions import MakeDirectory
from aks_flex_node.host.host import CommandResult
from tests.client_certificates import client_pem
from tests.hosts.recorded import RecordedHost
from tests.unit.agent.builders import empty_host

if TYPE_CHECKING:
    from aks_flex_node.api.config_urls import ConfigUrl

BUNDLE = ConfigBundle("{}", "1", "aks-flex-rp:x")
DMI = "/sys/class/dmi/id"


class Provider:
    """Answers with one of these outcomes after another."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.outcomes = list(outcomes)
        self.messages: list[str] = []
        self.pauses: list[float] = []

    def fetch(self) -> ConfigBundle:
        outcome = self.outcomes.pop(0)
        if outcome:
            raise outcome
        return BUNDLE

    def wait(self, seconds: float = 3600) -> ConfigBundle:
        return wait_for_approval(self.fetch, seconds, self.messages.append, self.pauses.append)


def pending() -> ApprovalPendingError:
    return ApprovalPendingError("1a2b-3c4d", 5)


def outage() -> ConfigError:
    return ConfigError("config-url-unreachable", "It does not respond.", retryable=True)


def test_fingerprint_is_printed_once_while_the_machine_waits() -> None:
    provider = Provider(*(pending() for _ in range(9)), None)
    assert provider.wait() is BUNDLE
    assert provider.messages == ["1a2b-3c4d"]
    message = approval_message("1a2b-3c4d")
    assert "`aks-flex-rp pool enrolment machines --pool POOL --id ENROLMENT`" in message
    assert "approve --pool POOL --id ENROLMENT --fingerprint 1a2b-3c4d`" in message
    assert provider.pauses[:3] == [5, 7.5, 11.25]
    assert max(provider.pauses) == LONGEST_PAUSE


def test_outage_of_the_provider_does_not_end_the_wait() -> None:
    provider = Provider(pending(), outage(), outage(), None)
    assert provider.wait() is BUNDLE
    assert provider.pauses == [5, 5, 5]


def test_outage_before_the_first_answer_is_an_error() -> None:
    with pytest.raises(ConfigError, match="does not respond"):
        Provider(outage()).wait()


@pytest.mark.parametrize("body", [b"", b"[]", b'{"fingerprint": 7, "retryAfterSeconds": "soon"}', b"{"])
def test_hostile_pending_answer_is_bounded(body: bytes) -> None:
    found = parse_pending(body)
    assert found.seconds == 1.0
    assert len(found.fingerprint) < 64
    assert parse_pending(b'{"fingerprint": "\\u001b[31m1a-2b", "retryAfterSeconds": 1e9}').seconds == 60
    assert parse_pending(b'{"fingerprint": "\\u001b[31m1a-2b"}').fingerprint == "31m1a-2b"


def links(*found: tuple[str, str, str] | tuple[str, str, str, str]) -> str:
    """Returns the answer of `ip -json -details link`: name, address and kind of each link, and its bridge."""
    loopback = {"ifname": "lo", "link_type": "loopback", "address": "00:00:00:00:00:00"}
    others = [
        {
            "ifname": name,
            "link_type": "ether",
            "address": address,
            **({"linkinfo": {"info_kind": kind}} if kind else {}),
            **({"master": bridge[0]} if bridge else {}),
        }
        for name, address, kind, *bridge in found
    ]
    return json.dumps([loopback, *others])


def test_facts_are_read_bounded_and_accepted_by_the_provider() -> None:
    files = {
        "/proc/sys/kernel/hostname": b"Pump-7\n",
        f"{DMI}/product_serial": b" SN\x00 1\x1b[31m" + b"9" * 500,
        f"{DMI}/product_uuid": b"8F1C0B2E-1111-4222-8333-444455556666\n",
        "/proc/meminfo": b"MemTotal:       16384 kB\nMemFree: 1 kB\n",
        "/sys/class/net/eth0/address": b"00:00:5e:00:53:99\n",  # in a container, of its host
        "/sys/class/net/eth0/device/vendor": b"0x1\n",
    }
    found = links(("eth0", "00:00:5E:00:53:01", ""), ("cni0", "aa:bb:cc:dd:ee:ff", "bridge"))
    host = RecordedHost(files, {("ip", "-json", "-details", "link"): CommandResult(0, found)})
    facts = read_facts(host)
    assert facts.hostname == "Pump-7"
    assert facts.serial_number.startswith("SN 1[31m9")
    assert len(facts.serial_number) == 128
    assert facts.mac_addresses == ("00:00:5e:00:53:01",)
    assert facts.memory_bytes == 16 << 20
    assert parse_facts(facts.to_document()) == facts


@pytest.mark.parametrize(
    ("found", "addresses"),
    [
        (links(("eth0", "00:00:5e:00:53:01", ""), ("veth1", "00:00:5e:00:53:02", "veth")), ("00:00:5e:00:53:01",)),
        (links(("host0", "00:00:5e:00:53:02", "veth")), ("00:00:5e:00:53:02",)),
        (
            links(("host0", "00:00:5e:00:53:02", "veth"), ("veth1", "00:00:5e:00:53:03", "veth", "cni0")),
            ("00:00:5e:00:53:02",),
        ),
        (links(("tun0", "00:00:5e:00:53:04", "tun"), ("cni0", "00:00:5e:00:53:05", "bridge")), ()),
        (links(), ()),
        ("", ()),
        ('Object "link" is unknown', ()),
        ("{}", ()),
    ],
)
def test_mac_addresses_are_those_of_devices_or_of_a_container(found: str, addresses: tuple[str, ...]) -> None:
    assert parse_mac_addresses(found) == addresses


def test_machine_without_firmware_tables_has_facts() -> None:
    facts = read_facts(empty_host())
    assert (facts.serial_number, facts.system_uuid, facts.mac_addresses) == ("", "", ())
    assert parse_facts(facts.to_document()) == facts


@pytest.mark.parametrize(
    ("url", "enrols"),
    [
        ("https://rp.example/enrolments/abc", True),
        ("https://rp.example/prefix/enrolments/abc#ca=sha256:" + "0" * 64, True),
        ("https://rp.example/configs/abc", False),
        ("https://rp.example/enrolments/configs/abc", False),
        ("https://rp.example/configs/enrolments", False),
    ],
)
def test_url_of_an_enrolment_is_recognized_by_its_path(url: str, enrols: bool) -> None:
    parsed = config_urls.parse(url)
    assert parsed.is_enrolment is enrols
    assert parsed.secret == url.partition("#")[0].rpartition("/")[2]


ENROLMENT = config_urls.parse("https://rp.example/enrolments/another")
CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"


class Messages(ProgressReporter):
    def __init__(self) -> None:
        self.found: list[str] = []

    def message(self, text: str) -> None:
        self.found.append(text)


def joined_host(*, bound: bool = True, credential: bool = True, stored: bool = True) -> RecordedHost:
    host = RecordedHost(
        {
            **({CERTIFICATE: client_pem()} if credential else {}),
            **({CURRENT_CONFIG: json.dumps({"config": {"node": {"name": "pump-7"}}})} if stored else {}),
        }
    )
    host.apply(MakeDirectory("/etc/aks-flex-node"))
    store = NodeKeyStore(host)
    store.ensure()
    store.bind("aks-flex-rp:x" if bound else "")
    node_state.write(host, "/var/lib/aks-flex-node/state.json", NodeState(node="pump-7"))
    return host


@pytest.mark.parametrize("url", [ENROLMENT, config_urls.parse("https://rp.example/enrolments/the-same")])
def test_joined_machine_uses_its_stored_config_with_any_enrolment(url: ConfigUrl) -> None:
    progress = Messages()
    found = skip_enrolment(joined_host(), ConfigSelection(sets=("a=b",), url=url), progress)
    assert (found.url, found.files, found.sets) == (None, (Path(CURRENT_CONFIG),), ("a=b",))
    [message] = progress.found
    assert "has joined as node pump-7, so the URL is not used" in message


@pytest.mark.parametrize("lacks", ["bound", "credential", "stored"])
def test_machine_that_has_not_joined_enrols(lacks: str) -> None:
    progress, selection = Messages(), ConfigSelection(url=ENROLMENT)
    assert skip_enrolment(joined_host(**{lacks: False}), selection, progress) is selection
    assert not progress.found


def test_url_of_one_node_is_used_on_a_joined_machine() -> None:
    selection = ConfigSelection(url=config_urls.parse("https://rp.example/configs/secret"))
    assert skip_enrolment(joined_host(), selection, Messages()) is selection
