"""Tables of the figures of virtual machines."""

from __future__ import annotations

from bench.virtual_machines.report import Figures, render


def test_machines_are_columns_and_other_subjects_have_own_tables() -> None:
    figures: Figures = {
        "bookworm amd64": {"accelerator": "tcg", "verify": 4.2, "unbootstrap": 20.0},
        "power loss": {"moments of power loss survived": 30},
        "trixie amd64": {"accelerator": "tcg", "verify": 4.5},
    }

    assert render(figures).splitlines() == [
        "| phase, in seconds | bookworm amd64 | trixie amd64 |",
        "| --- | --- | --- |",
        "| accelerator | tcg | tcg |",
        "| verify | 4.2 | 4.5 |",
        "| unbootstrap | 20.0 | not run |",
        "",
        "| power loss |  |",
        "| --- | --- |",
        "| moments of power loss survived | 30 |",
    ]
