"""Starts processes. No other module of the product does."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from aks_flex_node.host.host import MISSING_PROGRAM, CommandResult

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TIMED_OUT = 124
# A minimal environment, so that child processes do not inherit variables with secrets or local settings.
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
    """Runs a program until it exits, or until the time limit."""
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
        return CommandResult(MISSING_PROGRAM, err=f"{argv[0]}: program not found")
    except OSError as error:  # not executable, or built for another architecture
        return CommandResult(126, err=str(error))
    except subprocess.TimeoutExpired as late:
        output = (late.stderr or b"").decode(errors="replace")
        return CommandResult(TIMED_OUT, err=f"{output}\n{argv[0]} did not exit within {seconds:g} s")
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
