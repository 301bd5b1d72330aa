"""Erases a secret argument from the command line that other users of the machine can read in /proc/PID/cmdline.

The command line of a parent process, such as sudo, and sudo's log still contain it.
"""

from __future__ import annotations

import logging
from pathlib import Path

log = logging.getLogger(__name__)
PROCESS = Path("/proc/self")
START, END = 45, 46  # fields arg_start and arg_end of /proc/PID/stat, counted after the name of the program
ERASED = b"*"


def erase_argument(value: str) -> bool:
    """Overwrites an argument of this process in memory. Returns whether it was found."""
    secret = value.encode()
    try:
        fields = (PROCESS / "stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[START]), int(fields[END])
        with (PROCESS / "mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            at = memory.read(end - start).find(secret)
            if not secret or at < 0:
                return False
            memory.seek(start + at)
            memory.write(ERASED * len(secret))
    except (OSError, ValueError, IndexError) as error:
        log.debug("The argument is still visible in the list of processes: %s", error)
        return False
    return True
