"""Whether a container really starts: what no version number tells about a new containerd or runc."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from aks_flex_node.agent.config.models import NodeConfig
    from aks_flex_node.host.host import Host

NAME = "aks-flex-node-trial"
SECONDS = 30.0


def start_container(host: Host, config: NodeConfig, say: Callable[[str], None]) -> None:
    """Start one from the image that every pod needs, and take it away again."""
    image = config.containerd.pause_image
    if image not in _ask(host, config, "images", "list", "--quiet"):
        say(f"no container was started to try: {image} is not on this machine yet")
        return
    _clear(host, config)  # what a crash may have left
    runc = f"{config.paths.sbin_dir}/runc"
    words = ("run", "--detach", "--runc-binary", runc, "--cgroup", f"/{NAME}", image, NAME)
    try:
        host.do(Run(_ctr(config, *words), "start a container to try", seconds=SECONDS))
    except MachineError as error:
        raise MachineError(
            "container-does-not-start",
            f"No container can be started any more: {error.message}",
            "Look at `journalctl -u containerd -n 50`.",
        ) from error
    finally:
        _clear(host, config)
    say("a container was started to try, and works")


def _clear(host: Host, config: NodeConfig) -> None:
    if NAME in _ask(host, config, "tasks", "list", "--quiet"):
        why = "end the container that was tried"
        host.do(Run(_ctr(config, "tasks", "delete", "--force", NAME), why, seconds=SECONDS))
    if NAME in _ask(host, config, "containers", "list", "--quiet"):
        why = "take the container away that was tried"
        host.do(Run(_ctr(config, "containers", "delete", NAME), why, seconds=SECONDS))


def _ask(host: Host, config: NodeConfig, *words: str) -> list[str]:
    return host.ask(*_ctr(config, *words), seconds=SECONDS).out.split()


def _ctr(config: NodeConfig, *words: str) -> tuple[str, ...]:
    return (f"{config.paths.bin_dir}/ctr", "--namespace", "k8s.io", *words)
