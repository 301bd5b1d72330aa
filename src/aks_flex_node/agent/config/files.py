"""Finds and reads configuration files and secret files, and checks their permissions."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from aks_flex_node.agent.config.problems import ConfigProblem
from aks_flex_node.api.value_rules import read_certificate
from aks_flex_node.errors import ConfigError
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.table import by_path, file_settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aks_flex_node.agent.config.sources import SettingsSource

CONFIG_DIRECTORY = Path("/etc/aks-flex-node")
CONFIG_NAMES = ("config.json", "config.yaml", "config.yml")
MAX_FILE_BYTES = 1 << 20

TOKEN_FILE = "azure.bootstrapToken.tokenFile"  # noqa: S105


class _Unreadable(Exception):  # noqa: N818 - it never leaves this module
    pass


def find_config(environment: Mapping[str, str], directory: Path) -> Path | None:
    """Returns the configured file, else the file at the default path, or None if found is none."""
    if named := environment.get("AKS_FLEX_NODE_CONFIG"):
        return Path(named)
    found = [directory / name for name in CONFIG_NAMES if (directory / name).exists()]
    if len(found) > 1:
        raise ConfigError(
            "config-ambiguous",
            f"Both {' and '.join(str(each) for each in found)} exist, but only one configuration file is allowed.",
            "Remove one of them, or select a file with `--config`.",
        )
    return found[0] if found else None


def config_missing_error(path: Path) -> ConfigError:
    return ConfigError(
        "config-not-found",
        f"The configuration file {path} was not found.",
        f"Create one with `aks-flex-node config init {path}`, or select another file with `--config`. With a "
        "configuration URL of a resource provider, no file is needed: `echo 'https://…' | aks-flex-node agent "
        "--config-url-file -`. A pool of AKS needs none either: `--aks-pool ID`.",
    )


def read_config(path: Path) -> tuple[str, int]:
    """Returns the text of a configuration file and its mode."""
    if not path.exists():
        raise config_missing_error(path)
    try:
        content, mode = _read(path)
    except _Unreadable as error:
        raise config_unreadable_error(path, str(error)) from None
    return decode_config(path, content), mode


def decode_config(path: Path, content: bytes) -> str:
    """Returns the text of a configuration file. Raises ConfigError if it is not UTF-8."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass  # raised outside of `except`, so that no traceback includes the content of the file
    raise config_unreadable_error(path, "it is not UTF-8 text")


def config_unreadable_error(path: Path, reason: str) -> ConfigError:
    return ConfigError(
        "config-unreadable",
        f"{path} cannot be read: {reason}.",
        f"Check `ls -l {path}`, and run the command as root.",
    )


def _read(path: Path) -> tuple[bytes, int]:
    try:
        with os.fdopen(
            os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:  # must not block on a pipe
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise _Unreadable("it is not a regular file")
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise _Unreadable((error.strerror or "it cannot be opened").lower()) from None
    if len(content) > MAX_FILE_BYTES:
        raise _Unreadable("it is larger than 1 MiB")
    return content, stat.S_IMODE(info.st_mode)


def check_mode(path: Path, mode: int, source: SettingsSource) -> None:
    """Reports a world-writable file as a problem, because it controls what runs as root, and a readable one as a
    warning.
    """
    if mode & 0o002:
        reason = f"{path} is world-writable, so any user could run programs as root. Run `chmod 600 {path}`."
        source.problems.append(ConfigProblem("", reason, origin=str(path)))
    holds_secret = any(isinstance(value, Secret) for value in source.settings.values())
    if mode & 0o004 or (mode & 0o040 and holds_secret):
        detail = " and contains a secret" if holds_secret else ""
        source.warnings.append(f"{path} can be read by other users{detail}. Run `chmod 600 {path}`.")


def load_secret_files(source: SettingsSource) -> None:
    """Reads each `…File` setting and sets the setting that it replaces."""
    # The token is needed only for the first join.
    name = source.settings.get(TOKEN_FILE)
    if isinstance(name, str) and name.startswith("/") and not os.path.lexists(name):
        source.absent.add(TOKEN_FILE)
        source.warnings.append(f"{TOKEN_FILE} is {name}, which does not exist. A first join needs it.")
    for key, file_key in file_settings().items():
        is_secret = by_path()[key].kind == "secret"
        content = _content(source, file_key, secret=is_secret)
        if not content:
            continue
        if key == "azure.servicePrincipal.clientSecret" and content.startswith("-----BEGIN "):
            key = "azure.servicePrincipal.clientCertificate"  # noqa: PLW2901 - a file can have either
        # Invalid certificates are reported by the validation.
        pem = b"" if is_secret else read_certificate(content) or content.encode()
        source.settings[key] = Secret(content) if is_secret else base64.b64encode(pem).decode()
        source.origins[key] = f"{source.settings[file_key]}, set by {source.origins[file_key]}"


def _content(source: SettingsSource, key: str, *, secret: bool) -> str | None:
    name = source.settings.get(key)
    if not isinstance(name, str) or not name.startswith("/") or key in source.absent:
        return None  # not set, or the problem is reported elsewhere
    path, origin = Path(name), source.origins.get(key, "")
    try:
        content, mode = _read(path)
        text = content.decode().strip()
    except UnicodeDecodeError:
        source.problems.append(ConfigProblem(key, f"is {path}, which is not UTF-8 text.", origin=origin))
        return None
    except _Unreadable as error:
        source.problems.append(ConfigProblem(key, f"is {path}, which cannot be read: {error}.", origin=origin))
        return None
    if not text:
        source.problems.append(ConfigProblem(key, f"is {path}, which is empty.", origin=origin))
    if secret and mode & 0o077:
        source.warnings.append(f"{path} contains a secret and can be read by other users. Run `chmod 600 {path}`.")
    return text or None
