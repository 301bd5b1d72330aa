"""Tests of the error catalog, of `explain` and of the dashboard's help page."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from aks_flex_node import error_catalog
from aks_flex_node.errors import CommandUsageError
from aks_flex_rp.arm.errors import ArmError
from aks_flex_rp.dashboard.help_page import HelpPage
from aks_flex_rp.dashboard.page_renderer import PageRenderer, marked


def test_explain_prints_cause_check_remedy_and_exit_code() -> None:
    text, document = error_catalog.explain("root-required", "aks_flex_node")

    assert text.startswith("root-required (")
    assert all(f"\n{title}:" in text for title in ("Message", "Cause", "Remedy"))
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
