"""The one module of the product that starts processes."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMED_OUT = 124
# Children get what they need to work, and nothing of what a configuration or a shell may have put into ours.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "SYSTEMD_PAGER": "",
    "SYSTEMD_COLORS": "0",
}


def run(
    argv: Sequence[str],
    *,
    seconds: float,
    text: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> CommandResult:
    """Run a program to its end, which comes at the time limit at the latest."""
    try:
        done = subprocess.run(
            list(argv),
            input=text,
            capture_output=True,
            timeout=seconds,
            check=False,
            env={**ENVIRONMENT, **(env or {})},
        )
    except FileNotFoundError:
        return CommandResult(MISSING_PROGRAM, err=f"{argv[0]}: no such program")
    except OSError as error:  # not ours to start, or made for another machine
        return CommandResult(126, err=str(error))
    except subprocess.TimeoutExpired as late:
        output = (late.stderr or b"").decode(errors="replace")
        return CommandResult(TIMED_OUT, err=f"{output}\n{argv[0]} did not end within {seconds:g} s")
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
