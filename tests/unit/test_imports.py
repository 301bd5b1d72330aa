"""Checks that the import graph of the three packages has no cycle, including type-only and late imports, and that
only one module of the agent creates connections.

import-linter checks layers and cycles between packages; this test checks modules.
"""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def import_graph() -> dict[str, set[str]]:
    files = {module_name(path): path for path in SOURCE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for module, path in files.items():
        imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        names = {(node.module or "", alias.name) for node in imports if not node.level for alias in node.names}
        targets = {f"{parent}.{name}" if f"{parent}.{name}" in files else parent for parent, name in names}
        graph[module] = {target for target in targets if target in files and target != module}
    return graph


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    """Returns modules that import each other in a cycle; empty when there is none."""
    finished: set[str] = set()

    def visit(module: str, trail: list[str]) -> list[str]:
        if module in trail:
            return trail[trail.index(module) :]
        if module in finished:
            return []
        for target in sorted(graph[module]):
            if circle := visit(target, [*trail, module]):
                return circle
        finished.add(module)
        return []

    return next((circle for module in sorted(graph) if (circle := visit(module, []))), [])


def test_modules_have_no_circular_imports() -> None:
    assert find_cycle(import_graph()) == []


def test_circular_import_of_three_modules_is_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]


CONNECTION_MAKERS = {  # of ssl and urllib3: their caller decides which CAs the agent trusts
    "HTTPSConnectionPool",
    "PoolManager",
    "ProxyManager",
    "SSLContext",
    "_create_unverified_context",
    "connection_from_url",
    "create_default_context",
    "create_urllib3_context",
    "proxy_from_url",
    "wrap_socket",
}


def called_names(source: str) -> set[str]:
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return {call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "") for call in calls}


def test_one_module_of_the_agent_makes_tls_contexts_and_pools() -> None:
    makers = [
        module_name(path)
        for path in (SOURCE / "aks_flex_node" / "agent").rglob("*.py")
        if called_names(path.read_text()) & CONNECTION_MAKERS
    ]
    # `certificates` only loads a certificate with its key, and connects to nothing.
    assert sorted(makers) == ["aks_flex_node.agent.certificates", "aks_flex_node.agent.http.connections"]


def test_a_connection_that_is_made_elsewhere_is_found() -> None:
    source = "import ssl, urllib3\ndef make(it: ssl.SSLContext):\n return urllib3.PoolManager(ssl_context=it)"
    assert called_names(source) & CONNECTION_MAKERS == {"PoolManager"}


def test_agent_and_what_it_loads_use_lean_dataclasses() -> None:
    """The daemon's CPU time at its start has a budget; see `lean_dataclass`. The az extension has copies of `api`."""
    standard = [
        module_name(path)
        for path in (SOURCE / "aks_flex_node").rglob("*.py")
        if path.parent.name != "api"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        if "dataclass" in [alias.name for alias in node.names]
    ]
    assert standard == ["aks_flex_node.lean_dataclass"]
