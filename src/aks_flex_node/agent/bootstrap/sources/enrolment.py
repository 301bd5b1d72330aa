"""The URL of an enrolment as a join source: sends facts with the proof of the node key, and waits for an approval.

The key is made and kept as at any first contact, so that a machine that stops at any moment comes back with the same
key, and the provider continues with the use and the node that it has given to it.
"""

from __future__ import annotations

import json
import os
import platform
import time
from typing import TYPE_CHECKING

from aks_flex_node import __version__
from aks_flex_node.agent.bootstrap.sources.config_url import FromConfigUrl
from aks_flex_node.agent.bootstrap.sources.first_contact import NOT_ENROLLED, fetch_with_key
from aks_flex_node.agent.config.refusals import ApprovalPendingError
from aks_flex_node.agent.config.remote import fetch_config
from aks_flex_node.agent.machine import ARCHITECTURES, identify_machine, os_release
from aks_flex_node.agent.reconcile import lock
from aks_flex_node.agent.reconcile.program_stager import artifact_sources
from aks_flex_node.api import enrolments
from aks_flex_node.api.enrolments import MachineFacts, bounded_text, normalized_mac
from aks_flex_node.errors import CommandUsageError, ConfigError, FlexError, MachineError
from aks_flex_node.host.host import Host, read_text
from aks_flex_node.host.system import parse_memory_total

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.loader import LoadedConfig
    from aks_flex_node.agent.config.remote import ConfigBundle
    from aks_flex_node.agent.progress import ProgressReporter
    from aks_flex_node.settings.models import NodeConfig

DMI = "/sys/class/dmi/id"
CONTAINER_LINKS = frozenset(("veth", "macvlan"))  # through which a container reaches the network
LONGEST_PAUSE = 60.0  # between two requests of a machine that waits
BACKOFF = 1.5


class FromEnrolment(FromConfigUrl):
    """The URL of an enrolment, which makes this machine a node of a pool."""

    def preview(self, progress: ProgressReporter) -> LoadedConfig:  # noqa: ARG002
        raise CommandUsageError(
            "enrolment-url-not-allowed",
            "This is the URL of an enrolment, which makes this machine a node, and this command must not change it.",
            "Run `aks-flex-node agent --config-url-file -` to enrol it, and then this command without a URL.",
        )

    def _request(self, settings: NodeConfig, progress: ProgressReporter) -> ConfigBundle:
        url, sources, facts = self.url, artifact_sources(settings), read_facts(self.host).to_document()
        machine = identify_machine(self.host, url.origin)

        def show(fingerprint: str) -> None:
            lock.record_waiting(fingerprint)
            progress.message(approval_message(fingerprint))

        try:
            return fetch_with_key(
                self.host,
                str(settings.paths.data_dir),
                lambda prove: wait_for_approval(
                    lambda: fetch_config(url, sources, machine=machine, prove=prove, facts=facts),
                    settings.agent.approval_seconds,
                    show,
                ),
                NOT_ENROLLED,
            )
        finally:
            lock.record_waiting("")


def wait_for_approval(
    fetch: Callable[[], ConfigBundle],
    seconds: float,
    report: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> ConfigBundle:
    """Repeats the request until a person has approved this machine. An outage of the provider does not end that.

    Reports the fingerprint once, when the machine begins to wait.
    """
    waited, pause, shown = 0.0, 0.0, ""
    while True:
        try:
            return fetch()
        except ApprovalPendingError as pending:
            if not shown:
                report(pending.fingerprint)
            shown = pending.fingerprint
            pause = min(max(pending.seconds, pause * BACKOFF), LONGEST_PAUSE)
        except FlexError as error:
            if not shown or not error.retryable:
                raise
        if waited >= seconds:
            raise ConfigError(
                "enrolment-not-approved",
                f"This machine, whose key has the fingerprint {shown}, was not approved within {seconds:g} s.",
                "Approve it with `aks-flex-rp pool enrolment approve --pool POOL --id ENROLMENT --fingerprint "
                "FINGERPRINT`, and run the same command again. To wait longer, add `--set "
                "agent.approvalSeconds=SECONDS`.",
                retryable=True,
            )
        sleep(min(pause, max(seconds - waited, 0.1)))
        waited += pause


def approval_message(fingerprint: str) -> str:
    return (
        f"This machine waits for its approval. The fingerprint of its key is {fingerprint}. An operator compares it "
        "with the one that `aks-flex-rp pool enrolment machines --pool POOL --id ENROLMENT` lists, and approves it "
        "with `aks-flex-rp pool enrolment approve --pool POOL --id ENROLMENT --fingerprint "
        f"{fingerprint}`, or in the dashboard."
    )


def read_facts(host: Host) -> MachineFacts:
    """Reads what identifies this machine to the person who enrols it. What cannot be read is left out."""
    limits = enrolments.TEXT_LIMITS
    release = os_release(_text(host, "/etc/os-release"))
    hostname = _text(host, "/proc/sys/kernel/hostname").strip() or _text(host, "/etc/hostname").strip()
    return MachineFacts(
        bounded_text(hostname, limits["hostname"]),
        bounded_text(_text(host, f"{DMI}/product_serial"), limits["serialNumber"]),
        bounded_text(_text(host, f"{DMI}/product_uuid"), limits["systemUuid"]),
        bounded_text(release.get("PRETTY_NAME", ""), limits["os"]),
        ARCHITECTURES.get(platform.machine(), platform.machine())[: limits["architecture"]],
        __version__[: limits["agentVersion"]],
        parse_mac_addresses(host.query("ip", "-json", "-details", "link").out),
        os.cpu_count() or 0,
        parse_memory_total(_text(host, "/proc/meminfo")) or 0,
    )


def parse_mac_addresses(links: str) -> tuple[str, ...]:
    """Returns the addresses of network devices from `ip -json -details link`, which reads the network namespace of
    this process; /sys in a container can be that of its host.

    Links that software makes have a kind. A container has only such a link: the end of a pair, or a part of a device.
    """
    try:
        document = json.loads(links or "[]")
    except ValueError:
        return ()
    found = [link for link in document if link.get("link_type") == "ether"] if isinstance(document, list) else []
    by_kind = [(link.get("linkinfo", {}).get("info_kind", ""), link) for link in found]
    devices = [link for kind, link in by_kind if not kind]
    chosen = devices or [link for kind, link in by_kind if kind in CONTAINER_LINKS and "master" not in link]
    addresses = (normalized_mac(str(link.get("address", ""))) for link in chosen)
    return tuple(dict.fromkeys(filter(None, addresses)))[: enrolments.MAX_MAC_ADDRESSES]


def _text(host: Host, path: str) -> str:
    try:
        return read_text(host, path)
    except (OSError, MachineError):
        return ""
