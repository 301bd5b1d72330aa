"""Reads secrets from private files, standard input, the environment or a prompt, never from arguments."""

from __future__ import annotations

import os
import stat
import sys
from functools import cache
from pathlib import Path
from threading import Lock

from azure.cli.core.azclierror import FileOperationError, InvalidArgumentValueError, RequiredArgumentMissingError
from knack.prompting import NoTTYException, prompt_pass

SECRET_VARIABLE = "AZURE_AKS_FLEX_NODE_CLIENT_SECRET"  # noqa: S105 - the name of a variable
QUESTION = "Secret of the service principal: "
UNREADABLE = (OSError, ValueError, RuntimeError)  # the last two: no name of a file at all, no such user's home
input_lock = Lock()  # az runs a command for several --ids in threads


def read_private(file: str, option: str) -> str:
    """What is in a file, without the line's end; `-` is standard input."""
    secret = _standard_input() if file == "-" else _read(file, option).strip()
    if not secret:
        raise InvalidArgumentValueError(f"There is nothing in {file}.", f"Check {option}.")
    return secret


def file_error(file: str, option: str, error: Exception) -> FileOperationError:
    """Names the file only if there is one: in place of @FILE az hands over what is in it, which may be a secret."""
    try:
        exists = Path(file).expanduser().exists()
    except UNREADABLE:
        exists = False
    if exists and isinstance(error, OSError):
        return FileOperationError(f"{option}: {file} cannot be read: {error.strerror}.", f"Check {option}.")
    return FileOperationError(
        f"{option}: there is no such file.", "Write the name of a file, without an @ before it."
    )


def _read(file: str, option: str) -> str:
    try:
        with Path(file).expanduser().open(encoding="utf-8", errors="replace") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            content = opened.read()
    except UNREADABLE as error:
        raise file_error(file, option, error) from None
    if os.name == "posix" and mode & 0o077:
        raise FileOperationError(
            f"{file} holds a secret, and others than its owner can read or write it.",
            f"Type `chmod 600 {file}`, and think about who may have read it.",
        )
    return content


def client_secret() -> str:
    """Of a service principal, where no file was named: from the environment, or from the person at the terminal."""
    from_environment = os.environ.get(SECRET_VARIABLE, "")
    if from_environment:
        return from_environment
    try:
        with input_lock:
            return _prompt()
    except NoTTYException:
        raise RequiredArgumentMissingError(
            "The secret of the service principal is needed, and there is no terminal to ask for it.",
            f"Name a file with --client-secret-file (`-` for standard input), set {SECRET_VARIABLE}, "
            "or say --certificate-on-machine.",
        ) from None


def _standard_input() -> str:
    with input_lock:
        return _prompt() if sys.stdin.isatty() else _read_stdin()


@cache
def _prompt() -> str:
    """Once, for however many nodes; and not shown as it is typed."""
    return str(prompt_pass(QUESTION))


@cache
def _read_stdin() -> str:
    """Once, for however many nodes: the second would find nothing."""
    return sys.stdin.read().strip()
