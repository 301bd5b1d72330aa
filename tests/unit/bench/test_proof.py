"""The page of figures says what was measured, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from bench.proof import report
from bench.proof.report import BENCHMARKS, MarkdownTable, median_and_range
from bench.proof.svg_plots import bar_chart, line_chart

if TYPE_CHECKING:
    from pathlib import Path

FOUND = {"seconds": {"fetch": {"median": 0.8, "min": 0.7, "max": 0.9}, "node <b>": {"median": 2, "min": 1, "max": 3}}}


def told(**parts: Any) -> dict[str, Any]:
    when = {"seconds": 12, "commit": "abc1234", "day": "2026-11-15"}
    each = {name: {"command": f"python -m bench.{name}", **when, "found": found} for name, found in parts.items()}
    return {"machine": {"cores": "2", "memory": "4 GiB"}, "command": "make bench", "parts": each}


def test_a_table_is_a_table() -> None:
    made = MarkdownTable(("what", "median"), (("join", "3 s"),)).markdown()
    assert made.splitlines() == ["| what | median |", "|---|---|", "| join | 3 s |"]


def test_every_figure_comes_with_its_command_its_spread_and_the_machine(tmp_path: Path) -> None:
    report.write_pages(tmp_path, told(baseline=FOUND))
    page = (tmp_path / "proof.md").read_text()
    assert "`python -m bench.baseline`, 12 s, commit abc1234, 2026-11-15." in page
    assert "| fetch | 0.8 s | 0.7 to 0.9 |" in page
    assert "cores 2 · memory 4 GiB" in page
    assert (tmp_path / "images" / "proof" / "baseline.svg").exists()


def test_what_was_not_measured_is_not_on_the_page(tmp_path: Path) -> None:
    report.write_pages(tmp_path, told(baseline=FOUND))
    assert "dashboard" not in (tmp_path / "proof.md").read_text()


@pytest.mark.parametrize(
    "picture", [bar_chart("A <title>", {"a & b": 0.0, "c": 2.5}, "s"), line_chart("Memory", [40.0, 42.5], "MiB")]
)
def test_pictures_are_readable_by_machines_and_by_people(picture: str) -> None:
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own
    texts = [each.text or "" for each in root.iter() if each.tag.endswith("}text")]
    assert any(text.startswith(("2.5", "42.5")) for text in texts)
    assert root.find("{http://www.w3.org/2000/svg}title") is not None


def test_spreads_are_said_in_the_words_of_either_bench() -> None:
    assert (
        median_and_range({"median": 2, "min": 1, "max": 3})
        == median_and_range({"median": 2, "least": 1, "most": 3})
        == ("2 s", "1 to 3")
    )


def test_every_bench_on_the_page_has_a_name_of_its_own() -> None:
    names = [part.name for part in BENCHMARKS]
    assert len(names) == len(set(names))
