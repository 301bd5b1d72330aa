"""The policy of a machine: what its administrator forbids to a provider, an AKS pool and operations of the cluster.

    forbid: [cluster, programs, azure.vpn, agent.version, unbootstrap]
    artifactHosts: [mirror.example]     # in addition to the publishers'; without it, all hosts are allowed

An entry of `forbid` is what settings reach in the table of settings, the path of a setting or a section, or the
removal of the node. Without the file, nothing is forbidden. A file that cannot be read or understood forbids
everything that settings reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args
from urllib.parse import urlsplit

from aks_flex_node.agent.config.parser import parse_yaml
from aks_flex_node.agent.config.resolved import ca_certificate, kubelet_auth
from aks_flex_node.errors import ConfigError, MachineError
from aks_flex_node.host.host import EntryKind, Host
from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.settings.models import NodeConfig
from aks_flex_node.settings.setting import CLUSTER, CREDENTIALS, MACHINE, NAMES, NOTHING, PROVIDER, VERSIONS, Reach
from aks_flex_node.settings.table import all_entries, by_path, keys, value_at
from aks_flex_node.settings.value_checks import closest_match

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from aks_flex_node.settings.table import ConfigKey


POLICY_FILE = "/etc/aks-flex-node/policy.yaml"
REFUSED_BY_POLICY = "RefusedByPolicy"  # reason of an update that was not applied
UNBOOTSTRAP = "unbootstrap"  # the removal of the node, which is no setting
AGENT_VERSION = "agent.version"
WORDS = (*(each for each in get_args(Reach) if each != NOTHING), UNBOOTSTRAP)
JOIN_REACHES = (NAMES, VERSIONS, CREDENTIALS, CLUSTER)  # of settings that a machine has from the join on
KEYS = ("forbid", "artifactHosts")
SERVER_URL, CA_CERT_DATA = "node.kubelet.serverURL", "node.kubelet.caCertData"
MAX_POLICY_BYTES = 1 << 16


@frozen
class Policy:
    forbidden: frozenset[str] = frozenset()
    artifact_hosts: frozenset[str] | None = None  # in addition to the publishers'; None: all
    exists: bool = False
    problem: str = ""  # why the file cannot be used

    def forbids(self, what: str) -> str:
        """Returns the entry that forbids a change of a setting, or the removal of the node; empty if none does."""
        parts = what.split(".")
        names = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
        if key := by_path().get(what):
            names.append(key.setting.reaches)
        return next((name for name in names if name in self.forbidden), "")

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
        for key in keys():
            # A provider cannot set what only the machine may. A secret proves an identity, which is compared.
            is_compared = key.setting.who != MACHINE and key.kind != "secret"
            entry = self.forbids(key.path) if is_compared else ""
            if entry and _changes(key, config, current):
                yield key.path if entry == key.path else f"{key.path} ({entry})"
        if self.artifact_hosts is not None:
            allowed = set(self._hosts())
            known = set(image_sources(current)) if current else set()  # they are no change
            sources = [*artifact_urls(config), *(each for each in image_sources(config) if each not in known)]
            yield from (f"{path} (artifactHosts)" for path, url in sources if host_of(url) not in allowed)


def _changes(key: ConfigKey, config: NodeConfig, current: NodeConfig | None) -> bool:
    """Returns whether a configuration changes a setting. A join gives a machine its name, identity, cluster and
    versions, so these are no change before it. A value that needs an owner is always one: exec.
    """
    setting, value = key.setting, _comparable(key, config)
    if setting.owner_value and value == setting.owner_value:
        return True
    if current is None:
        is_given = setting.who == PROVIDER or setting.reaches in JOIN_REACHES
        return value != key.default and not (is_given and key.path != AGENT_VERSION)
    before = _comparable(key, current)
    if setting.owner_value and before == setting.owner_value:
        return False  # what needs no owner is safer
    is_discovered = key.path in {SERVER_URL, CA_CERT_DATA}  # while they are not set, the agent asks Azure for them
    return value != before and bool(not is_discovered or (before and value))


def _comparable(key: ConfigKey, config: NodeConfig) -> object:
    """Returns the value of a setting in a form that is equal for values with the same meaning."""
    value = value_at(config, key)
    if key.path == "node.kubelet.auth":
        return kubelet_auth(config)
    if key.path == SERVER_URL:
        return address_of(value) if isinstance(value, str) else None
    if key.path == CA_CERT_DATA:
        return (ca_certificate(config) or b"").split()
    return value.lower() if key.setting.reaches == CLUSTER and isinstance(value, str) else value


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
    """Parses the file like a configuration file, so that a key that occurs twice is found."""
    try:
        document = parse_yaml(content.decode(), POLICY_FILE)
    except (ConfigError, UnicodeDecodeError, RecursionError):
        return strictest("is not a mapping in valid YAML")
    known = {*WORDS, *(each.path for each in all_entries())}
    problems = [f"has the key {'.'.join(map(str, each))} twice" for each in document.duplicates]
    if unknown := _unknown(document.data, KEYS):
        problems.append(f"has the unknown key {unknown} (known: {', '.join(KEYS)})")
    values = {name: value for name in KEYS if (value := document.data.get(name)) is not None}
    for name, value in values.items():
        if not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            problems.append(f"has a value of {name} that is not a list of texts")
        elif name == "forbid" and (unknown := _unknown(value, known)):
            words = f"{', '.join(WORDS)}, and the paths of settings and sections, such as azure.vpn"
            problems.append(f"forbids what is unknown: {unknown} (known: {words})")
    if problems:
        return strictest("; ".join(problems))
    hosts = frozenset(map(str.lower, values["artifactHosts"])) if "artifactHosts" in values else None
    return Policy(frozenset(values.get("forbid", ())), hosts, exists=True)


def _unknown(names: Iterable[object], known: Collection[str]) -> str:
    """Returns the names that are not known, each with the most similar known one."""
    texts = [str(name)[:80] for name in names if name not in known]
    near = [closest_match(text, known) for text in texts]
    guesses = [f" (did you mean {guess}?)" if guess else "" for guess in near]
    return ", ".join(f"{text!r}{guess}" for text, guess in zip(texts, guesses, strict=True))


def strictest(problem: str) -> Policy:
    return Policy(frozenset(WORDS), frozenset(), exists=True, problem=problem)


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
