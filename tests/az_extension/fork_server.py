"""Runs in az's Python in place of az: loads all modules once, then forks a process for each command.

Each input line is a JSON object with arguments, environment and standard input. Each response is one line.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, sys.argv[1])
WARM = (
    "azure.cli.core.aaz azure.cli.core.commands.client_factory azure.cli.command_modules.acs.commands msal requests "
    "azure.cli.core.auth.msal_credentials azure.core.pipeline.transport azure.mgmt.core.policies yaml"
)
for each in WARM.split():
    importlib.import_module(each)


def answer(asked: dict[str, object]) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        streams = [Path(folder) / name for name in ("in", "out", "err")]
        streams[0].write_text(str(asked["input"]))
        child = os.fork()
        if child == 0:
            become(asked, streams)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        return {"code": code, "out": streams[1].read_text(), "err": streams[2].read_text()}


def become(asked: dict[str, object], streams: list[Path]) -> None:
    os.dup2(os.open(streams[0], os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(streams[number], os.O_WRONLY | os.O_CREAT, 0o600), number)
    sys.stdin = os.fdopen(0)
    os.environ.update(asked["env"])  # type: ignore[call-overload]
    sys.argv = ["az", *asked["words"]]  # type: ignore[misc]
    code = 1
    with suppress(BaseException):
        try:
            runpy.run_module("azure.cli", run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    print("warm", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
