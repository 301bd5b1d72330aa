"""Runs `aks-flex-node` on a machine of its own: its files are in memory, at their real paths.

Only the network and the processes are those of the real machine. systemd, kernel modules and settings are simulated.
"""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.unit.agent.builders import JOIN
from tests.unit.agent.config.builders import settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CONFIG = "/etc/aks-flex-node/config.json"
PLACES = (
    "/etc/aks-flex-node",
    "/etc/kubernetes",
    "/opt/aks-flex-node",
    "/var/lib/aks-flex-node",
    "/var/lib/kubelet",
    "/var/log/aks-flex-node",
)
ERROR_NAME = re.compile(r"^ +([a-z]+(?:-[a-z0-9]+)+)(?:: run `aks-flex-node explain \1`.*)?$", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The name of the error that was printed, or an empty string."""
        return next(reversed(ERROR_NAME.findall(self.err)), "")


@dataclass(frozen=True)
class Started:
    pid: int
    name: str


@dataclass
class Sandbox:
    process: subprocess.Popen[str]
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    @classmethod
    def open(cls, room: Path) -> Sandbox:
        words = ("unshare", "--mount", "--propagation", "private", sys.executable, "-m")
        return cls(
            subprocess.Popen(
                [*words, "tests.remedies.agent.sandbox_process", str(room)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[3],
            )
        )

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(60)
        assert self.process.stdout
        self.process.stdout.close()

    def ask(self, kind: str, **request: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"kind": kind, **request}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(
        self, words: Sequence[str], *, user: str = "root", env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> Started:
        """Starts `aks-flex-node` with these arguments, and does not wait for it."""
        name = str(next(self.numbers))
        request = {"words": list(words), "user": user, "env": dict(env or {}), "stdin": stdin}
        return Started(self.ask("start", name=name, **request), name)

    def wait(self, started: Started) -> Outcome:
        code = self.ask("wait", pid=started.pid)
        out, err = (self.ask("read", name=f"{started.name}.{end}") for end in ("out", "err"))
        return Outcome(code, out, err)

    def flex(self, *words: str, user: str = "root", env: Mapping[str, str] | None = None, stdin: str = "") -> Outcome:
        return self.wait(self.start(words, user=user, env=env, stdin=stdin))

    def types(self, words: Sequence[str], **more: Any) -> Outcome:
        """Runs a command of a remedy, which begins with the name of the program and perhaps with `sudo`."""
        plain = [word for word in words if word != "sudo"]
        assert plain[0] == "aks-flex-node", words
        return self.flex(*plain[1:], **more)

    def sh(self, script: str) -> str:
        """Runs a command of the machine, which must succeed."""
        code, text = self.ask("run", words=["sh", "-ec", script])
        assert code == 0, f"{script}: {text}"
        return str(text)

    def write(self, path: str, content: str) -> None:
        """Writes a file that only root can read."""
        code, text = self.ask(
            "run",
            words=["sh", "-ec", 'umask 077; mkdir -p "$(dirname "$1")"; printf %s "$2" >"$1"', "sh", path, content],
        )
        assert code == 0, text

    def configure(self, values: Mapping[str, object] | None = None, path: str = CONFIG) -> None:
        """Writes the minimum configuration for a join, with these settings."""
        self.write(path, settings({**JOIN, "node.name": "edge-1", **(values or {})}))

    def reset(self) -> None:
        """Removes everything that a test has left: the agent's files, their mounts, kernel settings."""
        inside = "|".join(PLACES)
        self.sh(
            f"awk '$5 ~ \"^({inside})\" {{print $5}}' /proc/self/mountinfo | sort -r | while read -r one; do "
            f'umount "$one"; done; rm -rf {" ".join(PLACES)} /run/aks-flex-node* /run/*.pid /proc/sys/net/bridge; '
            "rm -f /etc/sysctl.d/*aks-flex-node* /etc/modules-load.d/aks-flex-node*; "
            "printf '%s\\n' overlay br_netfilter >/run/modules"
        )
