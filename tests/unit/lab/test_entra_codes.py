"""A code stands for one person, once, for a while, and for nobody but the application that asked."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aks_flex_node.lab.entra import answers
from aks_flex_node.lab.entra.codes import SECONDS, Codes, SignedIn, challenge_of

VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
ANN = SignedIn("ann", "app", "https://app/back", "openid", "n", challenge_of(VERIFIER))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_challenge_is_that_of_the_standards_own_example() -> None:
    assert challenge_of(VERIFIER) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_a_code_is_good_once() -> None:
    codes = Codes()
    code = codes.issue(ANN)
    assert codes.redeem(code, "APP", "https://app/back", VERIFIER) == ANN
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == answers.USED_CODE


@pytest.mark.parametrize(
    ("client", "redirect", "verifier", "refusal"),
    [
        ("other", "https://app/back", VERIFIER, answers.BAD_CODE),
        ("app", "https://app/back/", VERIFIER, answers.OTHER_REDIRECT),
        ("app", "https://app/back", "x", answers.WRONG_VERIFIER),
        ("app", "https://app/back", "", answers.WRONG_VERIFIER),
    ],
)
def test_a_code_that_is_shown_wrongly_is_spent(
    client: str, redirect: str, verifier: str, refusal: answers.Refusal
) -> None:
    codes = Codes()
    code = codes.issue(ANN)
    assert codes.redeem(code, client, redirect, verifier) == refusal
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == answers.USED_CODE


def test_a_code_ends_after_ten_minutes() -> None:
    clock = Clock()
    codes = Codes(clock)
    early, late = codes.issue(ANN), codes.issue(ANN)
    clock.now = SECONDS - 1
    assert codes.redeem(early, "app", "https://app/back", VERIFIER) == ANN
    clock.now = SECONDS
    assert codes.redeem(late, "app", "https://app/back", VERIFIER) == answers.OLD_CODE


def test_a_code_that_nobody_issued_is_unknown() -> None:
    assert Codes().redeem("made-up", "app", "https://app/back", VERIFIER) == answers.BAD_CODE


def test_a_verifier_for_a_code_without_a_challenge_is_refused() -> None:
    codes = Codes()
    code = codes.issue(SignedIn("ann", "app", "https://app/back", "openid", "n", ""))
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == answers.WRONG_VERIFIER
