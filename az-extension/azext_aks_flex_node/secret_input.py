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
QUESTION = "Client secret of the service principal: "
UNREADABLE = (OSError, ValueError, RuntimeError)  # ValueError: not a file name; RuntimeError: unknown home directory
input_lock = Lock()  # az runs a command for several --ids in threads


def read_private(file: str, option: str) -> str:
    """Reads a secret from a private file, or from standard input for `-`."""
    secret = _standard_input() if file == "-" else _read(file, option).strip()
    if not secret:
        raise InvalidArgumentValueError(f"{file} is empty.", f"Check {option}.")
    return secret


def file_error(file: str, option: str, error: Exception) -> FileOperationError:
    """Names the file only if it exists: az replaces @FILE with its content, which may be a secret."""
    try:
        exists = Path(file).expanduser().exists()
    except UNREADABLE:
        exists = False
    if exists and isinstance(error, OSError):
        return FileOperationError(f"{option}: {file} cannot be read: {error.strerror}.", f"Check {option}.")
    return FileOperationError(f"{option}: the file does not exist.", "Use a file name without a leading @.")


def _read(file: str, option: str) -> str:
    try:
        with Path(file).expanduser().open(encoding="utf-8", errors="replace") as opened:
            mode = stat.S_IMODE(os.fstat(opened.fileno()).st_mode)
            content = opened.read()
    except UNREADABLE as error:
        raise file_error(file, option, error) from None
    if os.name == "posix" and mode & 0o077:
        raise FileOperationError(
            f"{file} contains a secret, but other users can access it.",
            f"Run `chmod 600 {file}`. Replace the secret if other users may have read it.",
        )
    return content


def client_secret() -> str:
    """Reads the client secret from the environment, or prompts for it."""
    from_environment = os.environ.get(SECRET_VARIABLE, "")
    if from_environment:
        return from_environment
    try:
        with input_lock:
            return _prompt()
    except NoTTYException:
        raise RequiredArgumentMissingError(
            "The client secret of the service principal is required, and no terminal is available for a prompt.",
            f"Set --client-secret-file (`-` for standard input), {SECRET_VARIABLE} or --certificate-on-machine.",
        ) from None


def _standard_input() -> str:
    with input_lock:
        return _prompt() if sys.stdin.isatty() else _read_stdin()


@cache
def _prompt() -> str:
    """Prompts without echo, once for all nodes of a command."""
    return str(prompt_pass(QUESTION))


@cache
def _read_stdin() -> str:
    """Reads standard input, once for all nodes of a command."""
    return sys.stdin.read().strip()
