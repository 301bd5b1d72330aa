"""Tests of the error catalog, of `explain` and of the dashboard's help page."""

from __future__ import annotations

import ast
import asyncio
import importlib
import pkgutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import aks_flex_node
import aks_flex_rp
from aks_flex_node import error_catalog
from aks_flex_node.errors import CommandUsageError, FlexError
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.dashboard.page_renderer import HelpPage, PageRenderer, marked

PACKAGES = ("aks_flex_node", "aks_flex_rp")
MAX_ENTRIES = 120


def error_classes() -> dict[str, type[FlexError]]:
    """Returns all error classes of the programs, by name."""
    for package in (aks_flex_node, aks_flex_rp):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    classes: list[type[FlexError]] = [FlexError]
    for each in classes:  # grows while it is read
        classes += each.__subclasses__()
    return {each.__name__: each for each in classes}


def test_catalogue_agrees_with_the_errors_that_the_code_raises() -> None:
    classes, catalog = error_classes(), error_catalog.load_catalog(*PACKAGES)
    raised: dict[str, set[tuple[int, bool]]] = {}
    for source in (each for package in PACKAGES for each in Path("src", package).rglob("*.py")):
        text = source.read_text()
        if not any(f'"{name}"' in text for name in catalog):
            continue
        tree = ast.parse(text)
        owners = {call: of for of in ast.walk(tree) if isinstance(of, ast.ClassDef) for call in ast.walk(of)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            by_name = node.func.id if isinstance(node.func, ast.Name) else ""
            by_super = owners[node].name if "__init__" in ast.unparse(node.func) else ""
            if made := classes.get(by_name or by_super):
                flags = [ast.unparse(each.value) != "False" for each in node.keywords if each.arg == "retryable"]
                raised.setdefault(str(node.args[0].value), set()).add((made.exit_code, any(flags)))

    found = {name: (sorted({code for code, _ in of}), any(retry for _, retry in of)) for name, of in raised.items()}
    assert {name: (list(entry.exit), entry.retry) for name, entry in catalog.items()} == {
        name: found.get(name) for name in catalog
    }


def test_catalogue_is_small_and_each_entry_has_cause_and_remedy() -> None:
    catalog = error_catalog.load_catalog(*PACKAGES)

    assert len(catalog) <= MAX_ENTRIES
    assert [name for name, entry in catalog.items() if not entry.cause or not entry.remedy] == []


def test_explain_prints_cause_check_remedy_and_exit_code() -> None:
    text, document = error_catalog.explain("disk-full", "aks_flex_node")

    assert text.startswith("disk-full (")
    assert all(f"\n{title}:" in text for title in ("Cause", "Check", "Remedy"))
    assert document["exitCodes"]
    assert str(document["exitCodes"][0]) in text.splitlines()[0]


@pytest.mark.parametrize("name", ["disk-full", "DiskFull", "DISK_FULL"])
def test_explain_accepts_a_condition_reason_for_an_error(name: str) -> None:
    assert error_catalog.explain(name, "aks_flex_node")[1]["name"] == "disk-full"


def test_explain_prefers_the_exact_name() -> None:
    assert error_catalog.explain("SignInFailed", "aks_flex_node")[0].startswith("SignInFailed (provider state)")
    assert error_catalog.explain("sign-in-failed", "aks_flex_node")[0].startswith("sign-in-failed (")


def test_explain_shows_the_condition_of_a_reason() -> None:
    assert error_catalog.explain("DriftFound", "aks_flex_node")[0].startswith("DriftFound (reason of Drifted)")


def test_explain_suggests_similar_names_for_an_unknown_name() -> None:
    with pytest.raises(CommandUsageError, match="disk-full") as caught:
        error_catalog.explain("disk-ful", "aks_flex_node")
    assert caught.value.name == "error-name-unknown"


def test_explain_says_that_an_error_without_an_entry_has_only_its_message() -> None:
    assert not error_catalog.has_entry("root-required", *PACKAGES)
    with pytest.raises(CommandUsageError, match="see its message; it has no further explanation"):
        error_catalog.explain("root-required", *PACKAGES)


def test_every_listed_error_has_an_entry() -> None:
    catalog = error_catalog.load_catalog(*PACKAGES)

    assert all(error_catalog.has_entry(name, *PACKAGES) for name in catalog)
    assert not error_catalog.has_entry("group", *PACKAGES)


def test_explain_without_a_name_lists_errors_and_status_names() -> None:
    text, entries = error_catalog.explain(None, "aks_flex_rp", "aks_flex_node")

    assert "\n  disk-full" in text
    assert "\n  ProviderUnreachable" in text
    assert len({entry["name"] for entry in entries}) == len(entries)


def page(name: str) -> str:
    incoming = SimpleNamespace(path_params={"name": name})
    session = SimpleNamespace(caller=SimpleNamespace(name="admin"), csrf="x")
    request: Any = SimpleNamespace(incoming=incoming, session=session, shown=None, may_create=False)
    renderer = SimpleNamespace(show=lambda _page, _request, **about: about)
    shown = asyncio.run(HelpPage(cast("PageRenderer", renderer)).show(request))
    return str(shown)


def test_help_page_shows_errors_and_reasons() -> None:
    assert "'title': 'disk-full'" in page("disk-full")
    assert "Reason of Drifted" in page("DriftFound")


def test_help_page_of_an_unknown_name_is_not_found() -> None:
    with pytest.raises(ArmError) as caught:
        page("<script>")
    assert caught.value.status == 404


def test_marked_text_is_escaped_before_code_is_added() -> None:
    assert marked("run `a<b>` & <script>") == "run <code>a&lt;b&gt;</code> &amp; &lt;script&gt;"
