"""The policy of this machine (/etc/aks-flex-node/policy.yaml): what its administrator forbids to a provider or an AKS
pool.

    forbid: [agentUpdates, clusterChanges, execAuthentication, vpnChanges, unbootstrap]
    artifactHosts: [mirror.example]     # in addition to the publishers'; without it, all hosts are allowed

Without the file, nothing is forbidden. A file that cannot be read or understood forbids everything that it could.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from aks_flex_node.agent.config.resolved import ca_certificate, kubelet_auth
from aks_flex_node.errors import MachineError
from aks_flex_node.host.host import EntryKind, Host
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.models import NodeConfig

if TYPE_CHECKING:
    from collections.abc import Iterator


POLICY_FILE = "/etc/aks-flex-node/policy.yaml"
REFUSED_BY_POLICY = "RefusedByPolicy"  # reason of an update that was not applied
AGENT_UPDATES, EXEC_AUTHENTICATION = "agentUpdates", "execAuthentication"
CLUSTER_CHANGES, VPN_CHANGES, UNBOOTSTRAP = "clusterChanges", "vpnChanges", "unbootstrap"
FORBIDDABLE = (AGENT_UPDATES, CLUSTER_CHANGES, EXEC_AUTHENTICATION, VPN_CHANGES, UNBOOTSTRAP)
KEYS = ("forbid", "artifactHosts")
MAX_POLICY_BYTES = 1 << 16


@frozen
class Policy:
    forbidden: frozenset[str] = frozenset()
    artifact_hosts: frozenset[str] | None = None  # in addition to the publishers'; None: all
    exists: bool = False
    problem: str = ""  # why the file cannot be used

    def forbids(self, what: str) -> bool:
        return what in self.forbidden

    def describe(self) -> str:
        """Returns the policy in one line, for people."""
        if self.problem:
            return f"{POLICY_FILE} {self.problem}, so everything that it could forbid is forbidden"
        hosts = "" if self.artifact_hosts is None else f"artifact hosts except {', '.join(self._hosts())}"
        return f"forbids {', '.join([*sorted(self.forbidden), *([hosts] if hosts else [])]) or 'nothing'}"

    def _hosts(self) -> list[str]:
        return sorted({*publisher_hosts(), *(self.artifact_hosts or ())})

    def violations(self, config: NodeConfig, current: NodeConfig | None = None) -> list[str]:
        """Returns what a configuration from a provider or a pool must not do on this machine. `current` is the
        configuration in effect, None before a join.
        """
        return list(self._violations(config, current))

    def _violations(self, config: NodeConfig, current: NodeConfig | None) -> Iterator[str]:
        version, running = config.agent.version or "", (current.agent.version or "") if current else ""
        if self.forbids(AGENT_UPDATES) and version != running:
            yield f"agent.version {version or '(the installed program)'} ({AGENT_UPDATES})"
        if self.forbids(EXEC_AUTHENTICATION) and kubelet_auth(config) == "exec":
            yield f"node.kubelet.auth exec ({EXEC_AUTHENTICATION})"
        before = current.azure.vpn if current else NodeConfig().azure.vpn
        if self.forbids(VPN_CHANGES) and config.azure.vpn != before:
            yield f"azure.vpn ({VPN_CHANGES})"
        if self.forbids(CLUSTER_CHANGES) and current:
            yield from (f"{path} ({CLUSTER_CHANGES})" for path in cluster_changes(config, current))
        if self.artifact_hosts is not None:
            allowed = set(self._hosts())
            known = set(image_sources(current)) if current else set()  # they are no change
            sources = [*artifact_urls(config), *(each for each in image_sources(config) if each not in known)]
            yield from (f"{path} (artifactHosts)" for path, url in sources if host_of(url) not in allowed)


EVERYTHING = frozenset(FORBIDDABLE)


def read_policy(host: Host) -> Policy:
    """Reads the policy of this machine. Never raises: what cannot be used is the most restrictive policy."""
    entry = host.stat(POLICY_FILE)
    if entry is None:
        return Policy()
    if entry.kind is not EntryKind.FILE:
        return strictest("is not a regular file")
    if not entry.roots or entry.mode & 0o022:
        return strictest("can be changed by other users than root")
    try:
        content = host.read(POLICY_FILE)
    except OSError:  # a user who is not root, and a file with mode 0600
        content = None
    if content is None or len(content) > MAX_POLICY_BYTES:
        return strictest("cannot be read" if content is None else "is too large")
    return parse_policy(content)


def parse_policy(content: bytes) -> Policy:
    from yaml import YAMLError, safe_load  # slow to import

    try:
        document: Any = safe_load(content.decode())
    except (YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        return strictest("is not valid YAML")
    try:
        return convert_policy({} if document is None else document)
    except ValueError as error:
        return strictest(str(error))


def convert_policy(document: Any) -> Policy:
    """Converts a parsed file. Raises ValueError with what is wrong."""
    if not isinstance(document, dict):
        raise ValueError("is not a mapping")
    if unknown := [str(key) for key in document if key not in KEYS]:
        raise ValueError(f"has the unknown key {unknown[0][:80]!r} (known: {', '.join(KEYS)})")
    forbidden, hosts = (_texts(name, document.get(name)) for name in KEYS)
    if wrong := [each for each in forbidden or () if each not in FORBIDDABLE]:
        raise ValueError(f"forbids {wrong[0][:80]!r}, which is unknown (known: {', '.join(FORBIDDABLE)})")
    allowed = None if hosts is None else frozenset(each.lower() for each in hosts)
    return Policy(frozenset(forbidden or ()), allowed, exists=True)


def _texts(name: str, value: Any) -> list[str] | None:
    if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
        raise ValueError(f"has a value of {name} that is not a list of texts")
    return value


def strictest(problem: str) -> Policy:
    return Policy(EVERYTHING, frozenset(), exists=True, problem=problem)


def artifact_urls(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yields the settings that name servers of artifacts, with their values."""
    yield "kubernetes.urlTemplate", config.kubernetes.url_template
    for name in ("containerd", "runc", "cni", "npd", "agent"):
        yield f"{name}.url", getattr(config, name).url
    if config.artifacts.base_url:
        yield "artifacts.baseURL", config.artifacts.base_url


def image_sources(config: NodeConfig) -> Iterator[tuple[str, str]]:
    """Yields the settings that name registries of images, with the URLs of the registries."""
    yield "containerd.pauseImage", f"https://{image_registry(config.containerd.pause_image)}"
    for registry, mirrors in config.registry_mirrors.items():
        yield from ((f"registryMirrors.{registry}", mirror) for mirror in mirrors)


def image_registry(image: str) -> str:
    """Returns the registry of an image. A first part without dot and port is part of a name on Docker Hub."""
    first, slash, _ = image.partition("/")
    return first if slash and (set(".:") & set(first) or first == "localhost") else "docker.io"


def cluster_changes(config: NodeConfig, current: NodeConfig) -> Iterator[str]:
    """Yields the settings by which the node would obey another API server: its address and its CA."""
    before, after = current.node.kubelet.server_url, config.node.kubelet.server_url
    if before and after and address_of(before) != address_of(after):
        yield "node.kubelet.serverURL"
    trusted, authority = ca_certificate(current), ca_certificate(config)
    if trusted and authority and trusted.split() != authority.split():
        yield "node.kubelet.caCertData"


def publisher_hosts() -> set[str]:
    defaults = NodeConfig()
    return {host_of(url) for _, url in (*artifact_urls(defaults), *image_sources(defaults))}


def address_of(url: str) -> tuple[str, int]:
    try:
        return host_of(url), urlsplit(url).port or 443
    except ValueError:
        return host_of(url), 0


def host_of(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def refusal_message(policy: Policy, violations: list[str]) -> str:
    cause = f" The file {policy.problem}." if policy.problem else ""
    return f"The policy of this machine, {POLICY_FILE}, forbids {', '.join(violations)}.{cause} Nothing was changed."


REFUSAL_HINT = (
    f"Change the configuration, or let the administrator of the machine change {POLICY_FILE}. "
    "`aks-flex-node status` shows the policy. A change of the file is noticed at once."
)

JOIN_REFUSAL_HINT = (
    "A retry fails until one of the two changes: an operator removes these settings from the node, or the "
    f"administrator of this machine changes {POLICY_FILE}. Then run the join command again."
)


def require_usable(policy: Policy) -> None:
    """Raises MachineError for a file that forbids everything, because it cannot be used."""
    if policy.problem:
        raise MachineError(
            "refused-by-policy",
            f"{policy.describe()} to a provider.",
            f"Correct {POLICY_FILE} as root, then run `aks-flex-node config validate` as root again.",
        )


def refuse_by_policy(policy: Policy, violations: list[str], hint: str = REFUSAL_HINT) -> None:
    """Raises MachineError if there are violations."""
    if violations:
        raise MachineError("refused-by-policy", refusal_message(policy, violations), hint)
