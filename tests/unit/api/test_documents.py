"""Tests of the parser of the files that people write."""

from __future__ import annotations

from typing import Any

import pytest

from aks_flex_node.api.documents import parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a": [1, true, null, "x"]}', {"a": [1, True, None, "x"]}),
        (b"a: 2026-01-02\nb: null", {"a": "2026-01-02"}),
    ],
)
def test_json_and_yaml_are_read_as_values_of_json(text: bytes, found: Any) -> None:
    assert parse(text) == found


@pytest.mark.parametrize("text", [b"a: 1\nb: 2\na: 3", b'{"a": 1,\n\n"a": 2}'])
def test_repeated_key_is_refused_with_its_line(text: bytes) -> None:
    with pytest.raises(ValueError, match="line 3 repeats 'a'"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *(b"{", b"a: [", b"!!timestamp hidden", b"!!int hidden", b"!!binary aGlkZGVu", b"!!set {hidden}"),
        *(b"!!python/object:os.system hidden", b"[" * 5000, b"a: *hidden"),
    ],
)
def test_what_is_no_json_or_yaml_is_refused_without_its_text(text: bytes) -> None:
    with pytest.raises(ValueError, match="is neither JSON nor YAML") as caught:
        parse(text)
    assert "hidden" not in str(caught.value)
