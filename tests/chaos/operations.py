"""Operations on a node: changes of the desired state, changes by hand, power cuts."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.chaos.expected_state import NEWER, OLDER, OURS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.chaos.attempts import Tried

PROVIDER = threading.Lock()  # the provider is shared by all nodes
KEYS = tuple(f"{OURS}{name}" for name in ("tier", "rack", "owner"))


@dataclass(frozen=True)
class Operation:
    sentence: str
    do: Callable[[Tried], object]


def label(chance: random.Random) -> Operation:
    key, value = chance.choice(KEYS), f"l{chance.randrange(1000)}"
    return Operation(f"label {key} becomes {value}", lambda it: it.want(labels={**it.wanted.labels, key: value}))


def no_labels(chance: random.Random) -> Operation:
    return Operation("all labels go", lambda it: it.want(labels={}))


def taint(chance: random.Random) -> Operation:
    key, value = chance.choice(KEYS), f"t{chance.randrange(1000)}"
    return Operation(f"taint {key} becomes {value}", lambda it: it.want(taints={**it.wanted.taints, key: value}))


def no_taints(chance: random.Random) -> Operation:
    return Operation("all taints go", lambda it: it.want(taints={}))


def pods(chance: random.Random) -> Operation:
    count = chance.randrange(20, 250)
    return Operation(f"it may run {count} pods", lambda it: it.want(max_pods=count))


def kubelet_setting(chance: random.Random) -> Operation:
    limit = chance.randrange(500, 5000)
    return Operation(f"a pod may have {limit} processes", lambda it: it.want(pod_pids=limit))


def version(chance: random.Random) -> Operation:
    name = chance.choice(sorted(OLDER))

    def do(it: Tried) -> None:
        up = it.wanted.versions[name] == OLDER[name]
        it.want(downgrade=not up, versions={**it.wanted.versions, name: (NEWER if up else OLDER)[name]})

    return Operation(f"{name} changes its version, up or down", do)


def rotation(chance: random.Random) -> Operation:
    secret = f"secret-{chance.randrange(10**9)}"

    def do(it: Tried) -> None:
        """Both secrets are valid for a time, as in Entra ID."""
        managed = it.managed
        known = managed.principal
        changed = {"secret": secret, "older_secrets": (*known.older_secrets, known.secret)}
        managed.principal = managed.lab.azure.directory.change(known, **changed)
        it.want(secret=secret)

    return Operation("its service principal gets another secret", do)


DRIFTS = {
    "somebody edits containerd's configuration": "echo '# chaos' >>/etc/containerd/config.toml",
    "somebody edits the kubelet's configuration": "sed -i '/maxPods/s/: .*/: 7,/' /var/lib/kubelet/config.yaml",
    "somebody removes the kubelet's unit": "rm -f /etc/systemd/system/kubelet.service",
    "somebody removes the link to the kubelet": "rm -f /usr/local/bin/kubelet",
    "somebody has runc lead elsewhere": "ln -sfn /bin/true /usr/local/sbin/runc",
    "somebody stops the kubelet": "systemctl stop kubelet",
    "somebody stops containerd": "systemctl stop containerd",
    "somebody masks the problem detector": "systemctl mask --now --runtime node-problem-detector",
    "somebody disables the kubelet": "systemctl disable kubelet",
    "somebody turns forwarding off": "sysctl -qw net.ipv4.ip_forward=0",
    "a CNI plugin is damaged": "echo chaos >>/opt/cni/bin/bridge",
    "runc is damaged": "echo chaos >>$(readlink -f /usr/local/sbin/runc)",
    "the kubelet is cut short": "cd $(dirname $(readlink -f /usr/local/bin/kubelet)) && head -c 9999 kubelet >.short "
    "&& chmod 755 .short && mv -f .short kubelet",
}


def drift(chance: random.Random) -> Operation:
    sentence = chance.choice(sorted(DRIFTS))
    # An earlier operation may have removed what this one damages.
    return Operation(sentence, lambda it: it.shell(DRIFTS[sentence], check=False))


def cut(chance: random.Random) -> Operation:
    return Operation("its power is cut", lambda it: it.machine.power_cycle())


def restart(chance: random.Random) -> Operation:
    return Operation("its agent is restarted", lambda it: it.shell("systemctl restart aks-flex-node"))


def kill(chance: random.Random) -> Operation:
    words = "systemctl kill --signal=KILL --kill-whom=main aks-flex-node"
    return Operation("its agent is killed", lambda it: it.shell(words, check=False))


def provider_restart(chance: random.Random) -> Operation:
    def do(it: Tried) -> None:
        lab = it.managed.lab
        part = lab.provider.component()
        with PROVIDER:
            if running := lab.supervisor.process(part.name):
                running.stop()
            lab.supervisor.start(part)
            lab.supervisor.wait(part)

    return Operation("the provider is restarted", do)


# Relative frequency of each operation.
KINDS = {
    label: 4,
    no_labels: 1,
    taint: 3,
    no_taints: 1,
    pods: 2,
    kubelet_setting: 2,
    version: 4,
    rotation: 1,
    drift: 8,
    cut: 2,
    restart: 1,
    kill: 1,
    provider_restart: 1,
}


def any_one(chance: random.Random) -> Operation:
    (kind,) = chance.choices(list(KINDS), list(KINDS.values()))
    return kind(chance)
