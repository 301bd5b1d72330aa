"""Secrets of commands: from files that only their owner reads, from standard input, never from argv."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from azure.cli.core.azclierror import FileOperationError, InvalidArgumentValueError, RequiredArgumentMissingError
from knack.prompting import NoTTYException, prompt_pass

SECRET_VARIABLE = "AZURE_AKS_FLEX_NODE_CLIENT_SECRET"  # noqa: S105 - the name of a variable


def read_private(file: str, option: str) -> str:
    """What is in a file, without the line's end; `-` is standard input."""
    content = sys.stdin.read() if file == "-" else _read(Path(file).expanduser(), option)
    secret = content.strip()
    if not secret:
        raise InvalidArgumentValueError(f"There is nothing in {file}.", f"Check {option}.")
    return secret


def _read(file: Path, option: str) -> str:
    try:
        with file.open(encoding="utf-8", errors="replace") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            content = opened.read()
    except OSError as error:
        raise FileOperationError(f"{file} cannot be read: {error.strerror}.", f"Check {option}.") from None
    if os.name == "posix" and mode & 0o077:
        raise FileOperationError(
            f"{file} holds a secret, and others than its owner can read or write it.",
            f"Type `chmod 600 {file}`, and think about who may have read it.",
        )
    return content


def client_secret() -> str:
    """Of a service principal, where no file was named: from the environment, or from the person at the terminal."""
    given = os.environ.get(SECRET_VARIABLE, "")
    if given:
        return given
    try:
        return str(prompt_pass("Secret of the service principal: "))
    except NoTTYException:
        raise RequiredArgumentMissingError(
            "The secret of the service principal is needed, and there is no terminal to ask for it.",
            f"Name a file with --client-secret-file (`-` for standard input), set {SECRET_VARIABLE}, "
            "or say --certificate-on-machine.",
        ) from None
