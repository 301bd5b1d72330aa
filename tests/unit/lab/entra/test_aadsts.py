"""Tests of authorization codes: for one user and one application, valid once and for a limited time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aks_flex_lab.entra import aadsts
from aks_flex_lab.entra.grants import CODE_SECONDS, AuthorizationCodes, SignInGrant, pkce_challenge

VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
ANN = SignInGrant("ann", "app", "https://app/back", "openid", "n", pkce_challenge(VERIFIER))


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def test_pkce_challenge_matches_rfc_7636_example() -> None:
    assert pkce_challenge(VERIFIER) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


def test_authorization_code_can_be_redeemed_once() -> None:
    codes = AuthorizationCodes()
    code = codes.issue(ANN)
    assert codes.redeem(code, "APP", "https://app/back", VERIFIER) == ANN
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == aadsts.USED_CODE


@pytest.mark.parametrize(
    ("client", "redirect", "verifier", "refusal"),
    [
        ("other", "https://app/back", VERIFIER, aadsts.BAD_CODE),
        ("app", "https://app/back/", VERIFIER, aadsts.OTHER_REDIRECT),
        ("app", "https://app/back", "x", aadsts.WRONG_VERIFIER),
        ("app", "https://app/back", "", aadsts.WRONG_VERIFIER),
    ],
)
def test_failed_redemption_consumes_authorization_code(
    client: str, redirect: str, verifier: str, refusal: aadsts.EntraError
) -> None:
    codes = AuthorizationCodes()
    code = codes.issue(ANN)
    assert codes.redeem(code, client, redirect, verifier) == refusal
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == aadsts.USED_CODE


def test_authorization_code_expires_after_ten_minutes() -> None:
    clock = Clock()
    codes = AuthorizationCodes(clock)
    early, late = codes.issue(ANN), codes.issue(ANN)
    clock.now = CODE_SECONDS - 1
    assert codes.redeem(early, "app", "https://app/back", VERIFIER) == ANN
    clock.now = CODE_SECONDS
    assert codes.redeem(late, "app", "https://app/back", VERIFIER) == aadsts.OLD_CODE


def test_unknown_authorization_code_is_refused() -> None:
    assert AuthorizationCodes().redeem("made-up", "app", "https://app/back", VERIFIER) == aadsts.BAD_CODE


def test_verifier_without_challenge_is_refused() -> None:
    codes = AuthorizationCodes()
    code = codes.issue(SignInGrant("ann", "app", "https://app/back", "openid", "n", ""))
    assert codes.redeem(code, "app", "https://app/back", VERIFIER) == aadsts.WRONG_VERIFIER
