"""Every remedy of the error catalogue is followed by a test."""

from __future__ import annotations

import yaml

from tests.remedies.catalogue import NOT_FOLLOWED, TESTS, marked_names, remedies


def test_every_remedy_is_followed_by_a_test() -> None:
    followed = {name for file in TESTS.rglob("*.py") for name in marked_names(file)}
    reasons = yaml.safe_load(NOT_FOLLOWED.read_text()) or {}

    assert followed - remedies().keys() == set(), "marks with a name that is not in the catalogue"
    assert followed & reasons.keys() == set(), "followed by a test: remove it from the list"
    assert reasons.keys() - remedies().keys() == set(), "not in the catalogue: remove it from the list"
    assert sorted(remedies().keys() - followed - reasons.keys()) == []
