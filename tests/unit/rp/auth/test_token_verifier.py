"""Tests of token verification: accepted tokens, their callers, and errors of rejected ones."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from typing import TYPE_CHECKING, Any

import jwt
import pytest

from aks_flex_rp.auth.auth_errors import TenantUnreachable, Unauthenticated
from aks_flex_rp.auth.auth_settings import ARM_AUDIENCES, AuthSettings, TenantSettings
from aks_flex_rp.auth.token_verifier import TokenVerifier
from tests.unit.rp.auth.token_issuer import (
    APP,
    AUDIENCE,
    OID,
    STRANGER,
    TENANT,
    V2,
    Issuer,
    bearer,
    claims,
    curve_key,
    public_pem,
    rsa_key,
)

if TYPE_CHECKING:
    from aks_flex_rp.callers import Caller

INVALID = "InvalidAuthenticationToken"


def verified_caller(issuer: Issuer, token: str, **options: Any) -> Caller:
    return asyncio.run(issuer.tokens(**options).caller(bearer(token)))


def refused(issuer: Issuer, header: str) -> Unauthenticated:
    with pytest.raises(Unauthenticated) as caught:
        asyncio.run(issuer.tokens().caller(header))
    return caught.value


def ago(seconds: float) -> int:
    return int(time.time() - seconds)


def test_managed_identity_is_matched_by_its_machine_resource_id() -> None:
    machine = "/subscriptions/s/resourcegroups/G/providers/Microsoft.HybridCompute/machines/Edge-1"
    caller = verified_caller(Issuer(), Issuer().sign(xms_mirid=machine))

    assert caller.is_node(f"{machine.lower()}@{TENANT}")
    assert not caller.is_node(f"{machine.lower()}0@{TENANT}")
    assert not caller.is_node(f"{machine.lower()}@{STRANGER}")
    assert machine.lower() not in caller.ids  # roles are not assigned to machine resource IDs


@pytest.mark.parametrize(
    ("changes", "kind", "ids"),
    [
        ({"xms_mirid": "/subscriptions/s/x/edge-1"}, "ManagedIdentity", {OID, APP}),
        ({"idtyp": "user", "upn": "ann@example.com"}, "User", {OID}),
        ({"idtyp": None, "scp": "user_impersonation"}, "User", {OID}),
        ({"idtyp": None, "sub": "pairwise"}, "User", {OID}),
        ({"idtyp": None, "appid": None, "azp": APP, "iss": V2, "ver": "2.0"}, "Application", {OID, APP}),
        ({"idtyp": "user", "groups": [STRANGER.upper()]}, "User", {OID, STRANGER}),
        ({"oid": OID.upper(), "sub": OID.upper(), "tid": TENANT.upper()}, "Application", {OID, APP}),
    ],
)
def test_caller_kind_is_derived_from_token_claims(changes: dict[str, Any], kind: str, ids: set[str]) -> None:
    caller = verified_caller(Issuer(), Issuer().sign(**changes))
    assert str(caller.kind) == kind
    assert caller.ids == ids


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"exp": ago(301)}, "ExpiredAuthenticationToken"),
        ({"exp": -(10**30)}, "ExpiredAuthenticationToken"),
        ({"exp": None}, INVALID),
        ({"exp": "soon"}, INVALID),
        ({"nbf": ago(-4000)}, INVALID),
        ({"iat": ago(-4000)}, INVALID),
        ({"aud": "https://graph.microsoft.com"}, "InvalidAuthenticationTokenAudience"),
        ({"aud": AUDIENCE + ".evil.example"}, "InvalidAuthenticationTokenAudience"),
        ({"aud": None}, INVALID),
        # The service could act as the caller in Azure with a token that is for Azure, or also for Azure.
        *(({"aud": each}, "InvalidAuthenticationTokenAudience") for each in ARM_AUDIENCES),
        ({"aud": [AUDIENCE, ARM_AUDIENCES[0]]}, "InvalidAuthenticationTokenAudience"),
        ({"iss": f"https://sts.windows.net/{STRANGER}/"}, "InvalidAuthenticationTokenTenant"),
        ({"iss": f"https://login.example/{STRANGER}/v2.0"}, "InvalidAuthenticationTokenTenant"),
        ({"iss": None}, INVALID),
        ({"tid": STRANGER}, "InvalidAuthenticationTokenTenant"),
        ({"tid": None}, "InvalidAuthenticationTokenTenant"),
        ({"oid": None}, INVALID),
    ],
)
def test_token_with_invalid_claims_is_refused_with_arm_error_code(changes: dict[str, Any], code: str) -> None:
    assert refused(Issuer(), bearer(Issuer().sign(**changes))).code == code


@pytest.mark.parametrize(("claim", "seconds"), [("exp", 200), ("nbf", -200), ("iat", -200)])
def test_small_clock_skew_is_tolerated(claim: str, seconds: float) -> None:
    changes: dict[str, Any] = {claim: ago(seconds)}
    assert verified_caller(Issuer(), Issuer().sign(**changes)).id == OID


@pytest.mark.parametrize("audience", ARM_AUDIENCES)
def test_arm_audiences_are_accepted_behind_arm(audience: str) -> None:
    auth = AuthSettings(tenants=(TenantSettings(tenant_id=TENANT),), behind_arm=True)
    issuer = Issuer()
    tokens = TokenVerifier(auth, fetch=lambda _: issuer.fetch)
    assert asyncio.run(tokens.caller(bearer(issuer.sign(aud=audience)))).id == OID


def test_application_id_and_its_uri_are_the_same_audience() -> None:
    tenant = TenantSettings(tenant_id=TENANT, audiences=(f"api://{APP}",))
    issuer = Issuer()
    tokens = TokenVerifier(AuthSettings(tenants=(tenant,)), fetch=lambda _: issuer.fetch)
    for audience in (APP, f"api://{APP}"):  # of tokens of version 2 and 1
        assert asyncio.run(tokens.caller(bearer(issuer.sign(aud=audience)))).id == OID


def test_challenge_names_the_audience_of_the_service() -> None:
    assert f'resource="{AUDIENCE}"' in refused(Issuer(), "").challenge


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"])
def test_all_rsa_signature_algorithms_are_accepted(algorithm: str) -> None:
    assert verified_caller(Issuer(), Issuer().sign(algorithm=algorithm)).id == OID


@pytest.mark.parametrize(("curve", "algorithm"), [("P-256", "ES256"), ("P-384", "ES384")])
def test_elliptic_curve_key_verifies_its_own_algorithm(curve: str, algorithm: str) -> None:
    issuer = Issuer({"curve": curve_key(curve)})
    assert verified_caller(issuer, issuer.sign("curve", algorithm)).id == OID


def encoded(part: Any) -> bytes:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=")


def unsigned(algorithm: str) -> str:
    return (encoded({"alg": algorithm, "kid": "first"}) + b"." + encoded(claims()) + b".").decode()


def signed_with_the_public_key() -> str:
    """Returns a token of an algorithm confusion attack: the public key is used as an HMAC secret."""
    text = encoded({"alg": "HS256", "kid": "first", "typ": "JWT"}) + b"." + encoded(claims())
    mac = hmac.new(public_pem(rsa_key("first")), text, hashlib.sha256).digest()
    return (text + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


def tampered() -> str:
    head, _, signature = Issuer().sign().split(".")
    return ".".join((head, encoded(claims(oid=STRANGER)).decode(), signature))


def signed_by_another() -> str:
    return jwt.encode(claims(), rsa_key("another"), "RS256", headers={"kid": "first"})


def with_a_key_of_its_own() -> str:
    """Returns a token whose header contains a key and a key URL; a verifier must not trust either."""
    shown = Issuer._shown("mine", rsa_key("another"))
    headers = {"kid": "mine", "jwk": shown, "jku": "https://evil.example/keys"}
    return jwt.encode(claims(), rsa_key("another"), "RS256", headers=headers)


@pytest.mark.parametrize(
    "token",
    [
        unsigned("none"),
        unsigned("None"),
        unsigned("RS256"),
        signed_with_the_public_key(),
        tampered(),
        signed_by_another(),
        with_a_key_of_its_own(),
        Issuer().sign()[:-4],
        Issuer().sign() + ".x",
        "abc",
        "a.b.c",
        "é.è.ê",
        "." * 50,
        "x" * 20_000,
        encoded([]).decode() + "." + encoded([]).decode() + ".",
    ],
)
def test_forged_or_malformed_tokens_are_refused(token: str) -> None:
    assert refused(Issuer(), bearer(token)).code == INVALID


def test_token_signed_with_too_short_rsa_key_is_refused() -> None:
    issuer = Issuer({"short": rsa_key("short", 1024)})
    with pytest.warns(jwt.warnings.InsecureKeyLengthWarning):
        token = issuer.sign("short")
    assert refused(issuer, bearer(token)).code == INVALID


@pytest.mark.parametrize("header", ["", "   ", "Bearer", "Bearer ", "Basic YTpi", "Negotiate", Issuer().sign()])
def test_request_without_bearer_token_is_unauthenticated(header: str) -> None:
    answer = refused(Issuer(), header)
    assert answer.code == "AuthenticationFailed"
    assert answer.challenge.startswith(f'Bearer authorization_uri="https://login.microsoftonline.com/{TENANT}", ')


def test_refusal_does_not_echo_token_and_challenge_header_is_valid() -> None:
    token = Issuer().sign(exp=ago(999))
    answer = refused(Issuer(), bearer(token))
    assert answer.status == 401
    assert 'error="invalid_token"' in answer.challenge
    for text in (answer.challenge, answer.message, repr(answer)):
        assert not any(part in text for part in token.split("."))
        assert "\n" not in text
    assert Unauthenticated("AuthenticationFailed", 'a "b" \\ \r\n é').challenge.count('"') == 4


async def test_rotated_tenant_key_is_fetched_and_old_key_is_no_longer_trusted() -> None:
    issuer = Issuer()
    now = 0.0
    old = issuer.sign()

    tokens = issuer.tokens(monotonic=lambda: now)
    await tokens.caller(bearer(old))
    issuer.keys = {"second": rsa_key("second")}
    now += 60
    assert (await tokens.caller(bearer(issuer.sign("second")))).id == OID
    with pytest.raises(Unauthenticated):  # another token, because the first one is cached
        await tokens.caller(bearer(jwt.encode(claims(x=1), rsa_key("first"), "RS256", headers={"kid": "first"})))


async def test_unknown_key_ids_trigger_limited_key_requests() -> None:
    issuer = Issuer()
    now = 0.0

    tokens = issuer.tokens(monotonic=lambda: now)
    await tokens.caller(bearer(issuer.sign()))
    for moment in range(60):
        now = float(moment)
        token = jwt.encode(claims(), rsa_key("another"), "RS256", headers={"kid": f"made-up-{moment}"})
        with pytest.raises(Unauthenticated):
            await tokens.caller(bearer(token))
    assert len(issuer.asked) == 4  # metadata and keys, at start and once more in a minute


async def test_concurrent_verifications_share_one_key_request() -> None:
    issuer = Issuer()

    tokens = issuer.tokens()
    await asyncio.gather(*(tokens.caller(bearer(issuer.sign(n=n))) for n in range(20)))
    assert len(issuer.asked) == 2


async def test_cached_keys_are_used_while_tenant_is_unreachable() -> None:
    issuer = Issuer()
    now = 0.0

    tokens = issuer.tokens(monotonic=lambda: now)
    await tokens.caller(bearer(issuer.sign()))
    issuer.away = True
    now += 100_000
    assert (await tokens.caller(bearer(issuer.sign(x=1)))).id == OID


async def test_verification_fails_as_unreachable_if_tenant_keys_never_loaded() -> None:
    issuer = Issuer(away=True)
    now = 0.0

    tokens = issuer.tokens(monotonic=lambda: now)
    with pytest.raises(TenantUnreachable, match="connection refused"):
        await tokens.caller(bearer(issuer.sign()))
    issuer.away = False
    now += 5
    assert (await tokens.caller(bearer(issuer.sign()))).id == OID


async def test_verified_token_is_cached_until_it_expires() -> None:
    issuer, now = Issuer(), time.time()
    token = bearer(issuer.sign(exp=int(now) + 60))

    tokens = issuer.tokens(clock=lambda: now)
    assert tokens.cached(token) is None
    caller = await tokens.caller(token)
    assert tokens.cached(token) is caller
    assert tokens.cached(token.encode()) is caller
    assert tokens.cached(token + "x") is None
    now += 60 + 301
    assert tokens.cached(token) is None


def test_token_cache_size_is_bounded() -> None:
    issuer = Issuer()
    shown = [bearer(issuer.sign(n=n)) for n in range(5)]

    async def many() -> list[bool]:
        tokens = issuer.tokens(remembered=3)
        for each in shown:
            await tokens.caller(each)
        return [tokens.cached(each) is not None for each in shown]

    assert asyncio.run(many()) == [False, False, True, True, True]


def test_every_token_is_refused_without_configured_tenants() -> None:
    with pytest.raises(Unauthenticated) as caught:
        asyncio.run(TokenVerifier(AuthSettings()).caller(bearer(Issuer().sign())))
    assert caught.value.code == "InvalidAuthenticationTokenTenant"
    assert "authorization_uri" not in caught.value.challenge
