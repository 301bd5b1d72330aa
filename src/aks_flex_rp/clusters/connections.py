"""Connections to clusters: from a kubeconfig, or from Azure, which returns a kubeconfig.

A connection is stored encrypted and self-contained: it refers to no file and runs no program.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from aks_flex_node.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

IMPERSONATION_FIELDS = ("as", "as-uid", "as-groups", "as-user-extra")  # impersonation settings of kubectl


@dataclass(frozen=True)
class DirectConnection:
    """Address of the API server, its CA, and the credentials."""

    server: str
    authority: str  # PEM
    server_name: str = ""  # name in the server's certificate, if it is not the host of the address
    proxy: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)  # PEM
    key: str = field(default="", repr=False)  # PEM
    token: str = field(default="", repr=False)


@dataclass(frozen=True)
class ArmConnection:
    """An AKS cluster, identified by its ARM ID."""

    resource_id: str


ClusterConnection = DirectConnection | ArmConnection


def to_bytes(connection: ClusterConnection) -> bytes:
    if isinstance(connection, ArmConnection):
        return json.dumps({"kind": "arm", "resourceId": connection.resource_id}).encode()
    return json.dumps({"kind": "direct", **asdict(connection)}).encode()


def from_bytes(data: bytes) -> ClusterConnection:
    document = json.loads(data)
    if document.pop("kind") == "arm":
        return ArmConnection(document["resourceId"])
    return DirectConnection(**document)


def load_kubeconfig(path: Path) -> DirectConnection:
    """Reads a kubeconfig and the files that it refers to, relative to its directory."""
    return parse_kubeconfig(_read(path).decode(errors="replace"), str(path), lambda name: _read(path.parent / name))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            "kubeconfig-unreadable",
            f"Cannot read {path}: {error.strerror}.",
            "Check the path and the permissions of the file.",
        ) from None


def parse_kubeconfig(
    text: str, source: str = "The kubeconfig", read: Callable[[str], bytes] | None = None
) -> DirectConnection:
    """Parses the current context of a kubeconfig. Without `read`, it must not refer to files."""
    return _KubeconfigReader(source, read).connection(text)


@dataclass(frozen=True)
class _KubeconfigReader:
    """Parses one kubeconfig. Error messages name fields and never contain values, which may be secrets."""

    source: str
    read: Callable[[str], bytes] | None

    def connection(self, text: str) -> DirectConnection:
        document = self._document(text)
        name = document.get("current-context")
        if not name:
            raise self._wrong("current-context", "is missing", "Set it with `kubectl config use-context NAME`.")
        context = self._named(document, "contexts", name, "context")
        cluster = self._named(document, "clusters", context.get("cluster"), "cluster")
        user = self._named(document, "users", context.get("user"), "user")
        self._refuse_impersonation(user)
        certificate, key = self._pair(user)
        server = str(cluster.get("server") or "")
        if not server.startswith("https://"):
            raise self._wrong("cluster.server", "is not an https:// URL")
        if cluster.get("insecure-skip-tls-verify"):
            raise self._wrong(
                "cluster.insecure-skip-tls-verify",
                "is set, but the service always verifies the certificate of the API server",
                "Remove it, and set certificate-authority-data.",
            )
        return DirectConnection(
            server=server.rstrip("/"),
            authority=(
                self._content(cluster, "cluster", "certificate-authority")
                or self._missing("cluster.certificate-authority-data")
            ),
            server_name=str(cluster.get("tls-server-name") or ""),
            proxy=str(cluster.get("proxy-url") or ""),
            certificate=certificate,
            key=key,
            token="" if certificate else self._token(user),
        )

    def _document(self, text: str) -> dict[str, Any]:
        try:
            document = yaml.safe_load(text)
        except yaml.YAMLError:
            document = None  # the parser's message may contain part of the text
        if not isinstance(document, dict):
            raise ConfigError(
                "kubeconfig-invalid",
                f"{self.source} is not a kubeconfig: it is not a YAML mapping.",
                "Use a file that `kubectl --kubeconfig FILE get nodes` accepts.",
            )
        return document

    def _named(self, document: dict[str, Any], plural: str, name: object, singular: str) -> dict[str, Any]:
        entries = document.get(plural)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(singular), dict):
                return dict(entry[singular])
        raise self._wrong(plural, f"has no entry {name!r}, which the current context needs")

    def _refuse_impersonation(self, user: dict[str, Any]) -> None:
        for name in IMPERSONATION_FIELDS:
            if user.get(name):
                raise self._wrong(
                    f"user.{name}",
                    "is set, but the service does not support impersonation",
                    "Remove it, and use the credentials of a user that has the permissions.",
                )

    def _pair(self, user: dict[str, Any]) -> tuple[str, str]:
        for plugin in ("exec", "auth-provider"):
            if user.get(plugin):
                raise self._wrong(
                    f"user.{plugin}",
                    "runs a program for each login, which the service does not support",
                    "Use a client certificate or a service account token. For AKS, add the cluster by its "
                    "resource ID, or get the kubeconfig with `az aks get-credentials --admin`.",
                )
        certificate = self._content(user, "user", "client-certificate")
        key = self._content(user, "user", "client-key")
        if certificate and not key:
            self._missing("user.client-key-data")
        return (certificate, key) if certificate else ("", "")

    def _token(self, user: dict[str, Any]) -> str:
        if user.get("token"):
            return str(user["token"])
        if path := user.get("tokenFile"):
            return self._file("user.tokenFile", str(path)).decode(errors="replace").strip()
        raise self._wrong(
            "user",
            "has neither a client certificate nor a token",
            "Use a kubeconfig that authenticates with one of them.",
        )

    def _content(self, section: dict[str, Any], where: str, name: str) -> str:
        """Returns a PEM text that is set as data or as a file, or an empty string if neither is set."""
        if data := section.get(f"{name}-data"):
            try:
                text = base64.b64decode(str(data), validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                raise self._wrong(f"{where}.{name}-data", "is not a PEM text in base64") from None
        elif path := section.get(name):
            text = self._file(f"{where}.{name}", str(path)).decode(errors="replace")
        else:
            return ""
        if "-----BEGIN " not in text:
            raise self._wrong(f"{where}.{name}", "contains no PEM text")
        return text

    def _file(self, field_name: str, path: str) -> bytes:
        if self.read is None:
            raise self._wrong(
                field_name,
                "refers to a file, which is not available",
                "Embed the files with `kubectl config view --flatten`.",
            )
        return self.read(path)

    def _missing(self, field_name: str) -> str:
        raise self._wrong(field_name, "is missing")

    def _wrong(self, field_name: str, what: str, hint: str = "Compare it with a working kubeconfig.") -> ConfigError:
        return ConfigError("kubeconfig-invalid", f"{self.source}: {field_name} {what}.", hint)
