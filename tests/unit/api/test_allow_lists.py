"""Tests of the CSV lists of machines that may enrol."""

from __future__ import annotations

import pytest

from aks_flex_node.api.allow_lists import AllowListError, parse_allow_list

UUID = "11111111-2222-3333-4444-555555555555"


def test_each_fact_of_a_row_is_an_entry_in_normal_form() -> None:
    header = "\ufeffsite,Serial Number,system_uuid,macAddress"
    rows = ('"oslo, 2",ABC1,,', "", f"bergen,,{UUID.upper()},00-00-5E-00-53-01")

    assert parse_allow_list("\n".join((header, *rows)), "machines.csv") == [
        {"serialNumber": "abc1"},
        {"systemUuid": UUID},
        {"macAddress": "00:00:5e:00:53:01"},
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "line 1: the header row is missing."),
        ("site,name\noslo,a\n", "line 1: the header row names none of serialNumber, systemUuid, macAddress."),
        ("site;serialNumber\noslo;ABC1\n", "macAddress; separate the columns with commas instead of semicolons."),
        ("serialNumber\n", "line 1: no row follows the header row."),
        ("serialNumber\nABC1,oslo\n", "line 2: it has 2 columns, but the header row has 1."),
        ("site,serialNumber\noslo,\n", "line 2: it has no fact of a machine."),
        ("serialNumber\nABC1\nDefault string\n", "line 3: 'Default string' is not a serialNumber"),
        ("macAddress\n00:00:00:00:00:00\n", "line 2: '00:00:00:00:00:00' is not a macAddress"),
        ('serialNumber\n"ABC1\n', "it is not CSV"),
    ],
)
def test_invalid_list_is_refused_with_its_line(text: str, why: str) -> None:
    with pytest.raises(AllowListError) as caught:
        parse_allow_list(text, "machines.csv")

    assert str(caught.value).startswith("machines.csv, line ")
    assert why in str(caught.value)
    assert "header" in caught.value.hint
