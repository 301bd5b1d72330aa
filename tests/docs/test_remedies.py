"""Every remedy of the error catalogue is followed by a test, and by no test after its error is gone."""

from __future__ import annotations

from tests.remedies.catalogue import followed_names, remedies


def test_every_remedy_is_followed_by_a_test() -> None:
    assert followed_names() == remedies().keys()
