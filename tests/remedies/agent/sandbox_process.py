"""The process of a sandbox: has its own mounts, and forks one process for each command, which starts quickly.

Reads a request from each line of standard input, and answers with a line.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import pkgutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import aks_flex_node.agent
from aks_flex_node.agent.cli import main
from aks_flex_node.agent.components.system import SYSCTLS

CHANGED = ("etc", "opt", "usr/local", "var")  # changes are kept in memory, and end with the sandbox
KEPT = ("hosts", "resolv.conf")  # of /etc, because they can be mounts
NOBODY = 65534
# A unit runs if there is a file with the ID of its process.
SYSTEMCTL = """#!/bin/sh
case "$1" in
stop) shift; for unit; do [ -e "/run/$unit.pid" ] && kill "$(cat "/run/$unit.pid")"; rm -f "/run/$unit.pid"; done ;;
esac
exit 0
"""
# A module can be loaded if it is in a list. The bridge's settings exist when its module is loaded.
MODPROBE = """#!/bin/sh
[ "$1" = -r ] && exit 0
for name; do :; done
grep -qx "$name" /run/modules || { echo "modprobe: FATAL: Module $name not found" >&2; exit 1; }
if [ "$name" = br_netfilter ] && [ ! -e /run/no-bridge ]; then
    mkdir -p /proc/sys/net/bridge && cd /proc/sys/net/bridge &&
        echo 0 >bridge-nf-call-iptables && echo 0 >bridge-nf-call-ip6tables
fi
exit 0
"""


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)


def prepare(room: Path) -> None:
    """Makes a machine of its own: what a command changes is not on the disk or in the kernel of the real one."""
    mount("-t", "tmpfs", "tmpfs", str(room))
    (room / "etc-of-the-machine").mkdir()
    mount("--rbind", "/etc", str(room / "etc-of-the-machine"))
    for path in CHANGED:
        upper, work = room / "upper" / path, room / "work" / path
        for each in (upper, work):
            each.mkdir(parents=True)
        mount("-t", "overlay", "overlay", "-o", f"lowerdir=/{path},upperdir={upper},workdir={work}", f"/{path}")
    for name in KEPT:
        mount("--bind", str(room / "etc-of-the-machine" / name), f"/etc/{name}")
    mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    for name, text in (("systemctl", SYSTEMCTL), ("modprobe", MODPROBE)):
        program = Path("/usr/local/sbin") / name
        program.write_text(text)
        program.chmod(0o755)
    prepare_kernel(room)


def prepare_kernel(room: Path) -> None:
    """Makes kernel settings of its own, without swap and modules."""
    for name in ("modules", "swaps"):
        (room / name).write_text("Filename Type Size Used Priority\n" if name == "swaps" else "")
        if Path("/proc", name).exists():
            mount("--bind", str(room / name), f"/proc/{name}")
    mount("-t", "tmpfs", "tmpfs", "/proc/sys")
    for key in SYSCTLS:
        file = Path("/proc/sys", *key.split("."))
        if "bridge" not in key:  # with its module
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("0\n")


def import_agent() -> None:
    """Imports all modules, because another user may not be able to read their files."""
    for each in pkgutil.walk_packages(aks_flex_node.agent.__path__, "aks_flex_node.agent."):
        importlib.import_module(each.name)
    importlib.import_module("_strptime")
    sys.argv = ["aks-flex-node", "config", "show"]  # the command line imports more when it is used
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        main()


def start(request: dict[str, Any], room: Path) -> int:
    """Runs a command in a new process; returns its process ID."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            code = run_here(request, room)
        finally:
            os._exit(code)
    return pid


def run_here(request: dict[str, Any], room: Path) -> int:
    (room / "in").write_text(request["stdin"])
    os.dup2(os.open(room / "in", os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        file = room / f"{request['name']}.{name}"
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), number)
    os.environ.update(request["env"])
    if request["user"] != "root":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = ["aks-flex-node", *request["words"]]
    code = 0
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 70
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def answer(request: dict[str, Any], room: Path) -> object:
    match request["kind"]:
        case "start":
            return start(request, room)
        case "wait":
            return os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1])
        case "read":
            return (room / request["name"]).read_text(errors="replace")
    done = subprocess.run(request["words"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    return [done.returncode, done.stdout + done.stderr]


def serve(room: Path) -> None:
    prepare(room)
    import_agent()
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line), room)), flush=True)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
