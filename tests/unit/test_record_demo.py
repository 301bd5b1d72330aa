"""Tests of the recording of `make try`: terminal output to an animated image."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest
from scripts.record_demo import END_PAUSE, MAX_PAUSE, Line, clean, shortened, svg


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[1mbold\x1b[0m\r", "bold"),
        ("10 %\r20 %\r30 %", "30 %"),
        ("a\tb  ", "a       b"),
    ],
)
def test_line_is_recorded_as_the_terminal_shows_it(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_long_pauses_are_shortened() -> None:
    lines = shortened([Line(0.0, "a"), Line(1.0, "b"), Line(61.0, "c")])

    assert [line.at for line in lines] == [0.0, 1.0, 1.0 + MAX_PAUSE]


def test_picture_contains_every_line_escaped() -> None:
    picture = svg([Line(0.0, "$ make try"), Line(2.0, "1. <Start> & go"), Line(4.0, "")])

    root = Xml.fromstring(picture)  # noqa: S314 - it was made just now
    texts = ["".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts == ["$ make try", "1. <Start> & go"]
    assert f"animation: play {4.0 + END_PAUSE:.1f}s" in picture
