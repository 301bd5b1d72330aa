"""Tests of the page of measurements: it contains only measured figures, and keeps the text around them."""

from __future__ import annotations

from typing import Any

import pytest

from bench.measurements.report import BEGIN, BENCHMARKS, END, MarkdownTable, median_and_range, page_with_figures

FOUND = {"seconds": {"fetch": {"median": 0.8, "min": 0.7, "max": 0.9}, "node <b>": {"median": 2, "min": 1, "max": 3}}}


PAGE = f"# Measurements\n\n{BEGIN}{END}\n## By hand\n"


def told(**parts: Any) -> dict[str, Any]:
    when = {"seconds": 12, "commit": "abc1234", "day": "2026-11-15"}
    each = {name: {"command": f"python -m bench.{name}", **when, "found": found} for name, found in parts.items()}
    return {"machine": {"cores": "2", "memory": "4 GiB"}, "command": "make bench", "parts": each}


def test_markdown_table_renders_header_separator_and_rows() -> None:
    made = MarkdownTable(("what", "median"), (("join", "3 s"),)).markdown()
    assert made.splitlines() == ["| what | median |", "|---|---|", "| join | 3 s |"]


def test_benchmark_page_shows_command_range_and_machine() -> None:
    page = page_with_figures(PAGE, told(baseline=FOUND))
    assert "`python -m bench.baseline`, commit abc1234, 2026-11-15." in page
    assert "| fetch | 0.8 s | 0.7 to 0.9 |" in page
    assert "cores 2 · memory 4 GiB" in page


def test_new_figures_replace_only_the_earlier_ones() -> None:
    page = page_with_figures(PAGE, told(baseline=FOUND))
    assert page_with_figures(page, told(baseline=FOUND)) == page
    assert page.startswith("# Measurements\n")
    assert page.endswith("\n## By hand\n")


def test_recovery_table_shows_target_rounds_and_absence() -> None:
    one = {"median": 4.1, "least": 3, "most": 9.5, "rounds": 5, "cpu": 0.7, "children": 0.9}
    faults = {"job killed": one, "provider away": one, "reboot": one}
    page = page_with_figures(PAGE, told(recovery={"away": 600.0, "faults": faults}))
    assert "| job killed | 5 | 4.1 s | 9.5 s | 0.7 % | 0.9 % | under 5 s |" in page
    assert "| provider away for 600 s | 5 |" in page
    assert "| reboot | 5 | 4.1 s | 9.5 s | 0.7 % | 0.9 % |  |" in page


@pytest.mark.parametrize(("added", "target"), [(0.299, "under 0.3 s"), (0.306, "under 0.3 s, not met")])
def test_list_of_az_says_when_its_target_is_not_met(added: float, target: str) -> None:
    found = {"start": 0.7, "nodes": 1000, "list": 1, "added": added, "added_cpu": 0.2}
    assert f"| added by the list | {added} s | {target} |" in page_with_figures(PAGE, told(az_extension=found))


def test_benchmark_page_omits_unmeasured_benchmarks() -> None:
    assert "dashboard" not in page_with_figures(PAGE, told(baseline=FOUND))


def test_median_and_range_accepts_both_key_styles() -> None:
    assert (
        median_and_range({"median": 2, "min": 1, "max": 3})
        == median_and_range({"median": 2, "least": 1, "most": 3})
        == ("2 s", "1 to 3")
    )


def test_pool_nodes_are_shown_next_to_nodes_of_the_provider() -> None:
    ratio = {"median": 1.1, "min": 0.9, "max": 1.2}
    found = {
        "median": {side: {"join": 4, "upgrade": 5, "rss_mib": 33} for side in ("pool", "provider")},
        "ratio": {"join": ratio, "upgrade": ratio, "rss_mib": ratio},
        "requests_a_minute": {"pool": {"arm": 1.0}, "provider": {"arm": 0.0}},
    }
    page = page_with_figures(PAGE, told(aks_pool=found))
    assert "| join, until Node Ready | 4 s | 4 s | 1.1 times (0.9 to 1.2) |" in page
    assert "| requests to Azure per minute, idle | 1 | 0 |  |" in page


def test_benchmark_names_are_unique() -> None:
    names = [part.name for part in BENCHMARKS]
    assert len(names) == len(set(names))
