"""Check for settings of others that would undo the node's own at the next boot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aks_flex_node.agent.components.system import SETTINGS, SYSCTLS
from aks_flex_node.agent.preflight.findings import Finding, fine, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.preflight.situations import Situation

OURS = SETTINGS.rpartition("/")[2]
FOLDERS = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/lib/sysctl.d")  # of two files of one name the first counts
TABLE = "/etc/sysctl.conf"  # `sysctl --system` reads it after all others


def sysctl(situation: Situation) -> Iterator[Finding]:
    wrong = [found for path in _later(situation) for found in _against(situation, path)]
    yield from wrong
    if not wrong:
        yield fine("none that differ from the node's")


def _later(situation: Situation) -> list[str]:
    """The files that have their way over ours."""
    places: dict[str, str] = {}
    for folder in FOLDERS:
        for name in situation.names(folder):
            places.setdefault(name, f"{folder}/{name}")
    return [*(places[name] for name in sorted(places) if name > OURS and name.endswith(".conf")), TABLE]


def _against(situation: Situation, path: str) -> Iterator[Finding]:
    for key, value in settings(situation.text(path)).items():
        if SYSCTLS.get(key, value) != value:
            yield warning(
                f"{path} sets {key} = {value}, and the node needs {SYSCTLS[key]}.",
                f"Take that line out of {path}, or set it to {SYSCTLS[key]}.",
            )


def settings(text: str) -> dict[str, str]:
    """What a file of sysctl.d sets. The last line of a key counts, and a pattern never has its way over a key."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().lstrip("-").partition("=")
        if equals and not key.startswith(("#", ";")):
            found[dotted(key.strip())] = " ".join(value.split())
    return found


def dotted(key: str) -> str:
    """A key may be written with slashes; then dots and slashes have changed places."""
    slash, dot = key.find("/"), key.find(".")
    if slash < 0 or 0 <= dot < slash:
        return key
    return key.translate(str.maketrans("/.", "./"))
