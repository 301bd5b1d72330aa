"""azcmagent, the program that connects a machine with Azure Arc: told what it needs where nobody else reads it."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.arc import looking
from aks_flex_node.errors import MachineError
from aks_flex_node.host.actions import Remove, Run, WriteFile
from aks_flex_node.host.disk import beside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aks_flex_node.agent.arc.looking import Shown
    from aks_flex_node.agent.arc.wanted import Wanted
    from aks_flex_node.host.host import Host

TOLD = "/run/aks-flex-node-arc.json"  # gone with the next boot, if nobody removes it before
SECONDS = 300.0


@dataclass(frozen=True)
class Azcmagent:
    host: Host
    program: str

    def shown(self) -> Shown:
        answer = looking.ask(self.host, self.program)
        told = looking.shown(answer.out) if answer.ok else None
        if told is None:
            raise MachineError(
                "azcmagent-silent",
                f"azcmagent does not say how it is: {answer.last_words.rstrip('.')}.",
                f"Run `{self.program} show` to see more; `{self.program} check` looks at its network.",
                again=True,
            )
        return told

    def connect(self, wanted: Wanted, token: str) -> None:
        settings = {
            "access-token": token,
            "subscription-id": wanted.subscription,
            "resource-group": wanted.resource_group,
            "resource-name": wanted.name,
            "tenant-id": wanted.tenant,
            "location": wanted.location,
            "cloud": wanted.cloud,
            "tags": ",".join(f"{key}={value}" for key, value in sorted(wanted.tags.items()) if is_plain(key + value)),
        }
        with self._told({key: value for key, value in settings.items() if value}):
            argv = (self.program, "connect", "--config", TOLD)
            self._run(argv, f"connect this machine with Azure Arc as {wanted.name}")

    def use_proxy(self, url: str) -> None:
        self._run((self.program, "config", "set", "proxy.url", url), "tell azcmagent of the proxy")

    def disconnect(self, token: str) -> None:
        """From Azure, too: its machine resource goes."""
        with self._told({"access-token": token}):
            self._run((self.program, "disconnect", "--config", TOLD), "disconnect this machine from Azure Arc")

    def forget(self) -> None:
        """Only here: Azure is not told."""
        self._run((self.program, "disconnect", "--force-local-only"), "make azcmagent forget its machine")

    @contextmanager
    def _told(self, settings: dict[str, str]) -> Iterator[None]:
        self.host.do(WriteFile(TOLD, json.dumps(settings).encode(), 0o600, secret=True))
        try:
            yield
        finally:
            self.host.do(Remove(TOLD))

    def _run(self, argv: tuple[str, ...], why: str) -> None:
        try:
            self.host.do(Run(argv, why, seconds=SECONDS))
        except MachineError as error:
            raise MachineError(
                "azcmagent-failed",
                f"Could not {why}: {error.message.partition(': ')[2] or error.message}",
                f"`{self.program} check` looks at its network; its own log is /var/opt/azcmagent/log/azcmagent.log. "
                "A code such as AZCM0042 is explained at https://aka.ms/arc/azcmerror.",
                again=True,
            ) from error


def is_plain(words: str) -> bool:
    """Whether azcmagent can be told of a tag: it takes all of them as one word. The others Azure is told by us."""
    return not set(words) & set(",='\"")


def tidy(host: Host) -> None:
    """What a run that was killed left, be it half written: it holds a token."""
    if host.look(TOLD) or host.look(str(beside(Path(TOLD)))):
        host.do(Remove(TOLD))
