"""Tests that no module of the product opens connections without being in the matrix of answers."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.service.answers.clients import CLIENTS

SOURCE = Path("src")
PACKAGES = ("aks_flex_node", "aks_flex_rp")
# Modules and functions by which a module opens connections.
LIBRARIES = {"urllib3", "httpx2", "httpx", "requests", "asyncpg", "psycopg", "aiohttp", "azure.storage.blob"}
LIBRARIES |= {"http.client", "urllib.request", "azure.identity", "azure.core", "azure.core.pipeline"}
CALLS = {
    "create_connection",
    "make_pool",
    "open_connection",
    "ApiClient",
    "HttpClient",
    "ProviderClient",
    "open_connections",
    "NodeWatch",
}
# Why a module that uses one of them opens no connection of its own.
USES_A_LISTED_CLIENT = "uses a listed client"
ONLY_NAMES = "only names of exceptions, types or limits"
EXCEPTIONS = {
    "aks_flex_node.bounded_http.connections": "the connections of all listed clients",
    "aks_flex_node.agent.http.connections": "the pools of all listed clients of the agent",
    "aks_flex_node.agent.artifacts.fetcher": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.artifacts.store": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.arc.azure_client": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.bootstrap.prerequisites": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.bootstrap.sources.source": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.cluster.readiness": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.config_sources.pool_source": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.config_sources.provider_source": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.config_sources.selection": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.managed_node": USES_A_LISTED_CLIENT,
    "aks_flex_node.agent.identity.device_sign_in": "uses the options of aks_flex_node.azure.credentials",
    "aks_flex_node.agent.vpn.dependencies": "connects and closes, with a timeout, and reads nothing",
    "aks_flex_node.agent.preflight.check": "imports a library before threads start",
    "aks_flex_rp.rollouts.gate_http": "has its own tests of servers that hang, drip or never stop",
    "aks_flex_rp.store.postgres": "the same driver as aks_flex_rp.raw_database, with its own tests of faults",
}


def imported(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {name.name for name in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return set()


def called(node: ast.AST) -> set[str]:
    if not isinstance(node, ast.Call):
        return set()
    return {getattr(node.func, "attr", "") or getattr(node.func, "id", "")}


def is_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"


def opens_connections(text: str) -> bool:
    """Returns whether a module uses a library for connections; names of exceptions and types do not count."""
    pending: list[ast.AST] = [ast.parse(text)]
    while pending:
        node = pending.pop()
        if is_types_only(node):
            continue
        names = {
            name for name in imported(node) if not name.startswith(("urllib3.exceptions", "azure.core.exceptions"))
        }
        if names & LIBRARIES and not is_exceptions_only(node):
            return True
        if called(node) & CALLS:
            return True
        pending += ast.iter_child_nodes(node)
    return False


def is_exceptions_only(node: ast.AST) -> bool:
    """`from azure.core import exceptions`, `from azure.core.credentials import AccessToken`, `import Timeout`."""
    harmless = {"exceptions", "AccessToken", "Timeout", "make_headers"}
    return isinstance(node, ast.ImportFrom) and {name.name for name in node.names} <= harmless


def modules() -> dict[str, str]:
    found = [path for package in PACKAGES for path in (SOURCE / package).rglob("*.py")]
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text() for path in found}


def test_every_module_that_opens_connections_is_in_matrix() -> None:
    opening = {name for name, text in modules().items() if opens_connections(text)}
    listed = {module for client in CLIENTS.values() for module in client.modules}
    assert opening - listed - set(EXCEPTIONS) == set(), "add a client to clients.py, or a reason to EXCEPTIONS"
    assert (listed | set(EXCEPTIONS)) - set(modules()) == set(), "these modules do not exist"
    assert set(EXCEPTIONS) - opening - {"aks_flex_node.bounded_http.connections"} == set(), "no longer needed"
    assert listed & set(EXCEPTIONS) == set()


def test_new_connection_is_found_in_source_text() -> None:
    for text in ("import urllib3", "from urllib import request\nimport urllib.request", "import http.client"):
        assert opens_connections(text)
    assert opens_connections("def call():\n    from httpx2 import AsyncClient\n    import httpx2")
    assert opens_connections("import socket\nsocket.create_connection(('a', 1))")
    assert not opens_connections("from urllib3.exceptions import HTTPError")
