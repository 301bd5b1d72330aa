"""Tests of user sign-in on the page of the lab's Entra ID, for an application with the real MSAL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import msal  # type: ignore[import-untyped]
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from aks_flex_lab.entra.directory import TENANT_ID
from aks_flex_lab.entra.grants import pkce_challenge
from tests.service.agent.identity.test_credentials import in_pem, made_certificate
from tests.service.lab.test_entra import ask, claims, trusting

if TYPE_CHECKING:
    import urllib3

    from aks_flex_lab.entra.directory import EntraPrincipal
    from tests.service.lab.cloud_harness import Cloud

# MSAL recommends form_post, with which a browser would not send the cookies of the dashboard.
pytestmark = pytest.mark.filterwarnings("ignore:response_mode='form_post' is recommended")

BACK = "https://dashboard.example/ui/signed-in"
AUTHORIZE = f"/{TENANT_ID}/oauth2/v2.0/authorize"
TOKEN = f"/{TENANT_ID}/oauth2/v2.0/token"
VERIFIER = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"


@dataclass(frozen=True)
class Application:
    """A web application and its user Ann."""

    cloud: Cloud
    itself: EntraPrincipal
    ann: EntraPrincipal

    def msal(self, credential: Any = None) -> Any:
        return msal.ConfidentialClientApplication(
            self.itself.client_id,
            client_credential=credential or self.itself.secret,
            authority=f"{self.cloud.url}/{TENANT_ID}",
            instance_discovery=False,
            http_client=trusting(self.cloud),
        )

    def answer(self, address: str, **form: str) -> urllib3.BaseHTTPResponse:
        """Submits the sign-in form; returns the response."""
        path = address.removeprefix(self.cloud.url)
        filled = {"username": self.ann.name, "password": "pass word", **form}
        return ask(self.cloud, "POST", path, fields=filled, encode_multipart=False, redirect=False)

    def question(self, **changes: str) -> str:
        told = {"client_id": self.itself.client_id, "response_type": "code", "redirect_uri": BACK}
        told |= {"scope": "openid profile", "state": "s", "code_challenge_method": "S256"}
        told |= {"code_challenge": pkce_challenge(VERIFIER), **changes}
        return f"{AUTHORIZE}?{urlencode(told)}"

    def asked(self, **changes: str) -> urllib3.BaseHTTPResponse:
        return ask(self.cloud, "GET", self.question(**changes), redirect=False)

    def redeemed(self, **form: str) -> urllib3.BaseHTTPResponse:
        told = {"grant_type": "authorization_code", "client_id": self.itself.client_id, "redirect_uri": BACK, **form}
        return ask(self.cloud, "POST", TOKEN, fields=told, encode_multipart=False)


@pytest.fixture
def application(cloud: Cloud) -> Application:
    itself = cloud.directory.service_principal("dashboard", "right", redirect_uris=(BACK,))
    name = f"ann-{itself.client_id}@flex.internal"
    return Application(cloud, itself, cloud.directory.user(name, "pass word", groups=("ops-group",)))


def sent_back(answer: urllib3.BaseHTTPResponse) -> dict[str, str]:
    """Returns the parameters of the redirect to the application."""
    assert answer.status == 303, answer.data.decode()
    where = urlsplit(answer.headers["Location"])
    assert f"{where.scheme}://{where.netloc}{where.path}" == BACK
    return dict(parse_qsl(where.query))


def test_msal_signs_in_user_with_auth_code_flow(application: Application) -> None:
    client = application.msal()
    flow = client.initiate_auth_code_flow([], redirect_uri=BACK, login_hint=application.ann.name)
    page = ask(application.cloud, "GET", flow["auth_uri"].removeprefix(application.cloud.url))
    assert f'value="{application.ann.name}"' in page.data.decode()
    told = sent_back(application.answer(flow["auth_uri"]))
    result = client.acquire_token_by_auth_code_flow(flow, told)
    who = result["id_token_claims"]
    assert (who["oid"], who["tid"], who["aud"]) == (
        application.ann.object_id,
        TENANT_ID,
        application.itself.client_id,
    )
    assert (who["preferred_username"], who["groups"]) == (application.ann.name, ["ops-group"])
    assert who["iss"] == f"{application.cloud.url}/{TENANT_ID}/v2.0"
    assert claims(result["access_token"])["aud"] == "https://graph.microsoft.com"
    [account] = client.get_accounts()
    assert account["username"] == application.ann.name


@pytest.mark.parametrize(
    ("form", "number"),
    [
        ({"password": "wrong"}, "AADSTS50126"),
        ({"username": "<b>nobody</b>@flex.internal"}, "AADSTS50034"),
    ],
)
def test_failed_sign_in_is_reported_on_page_without_echoing_input(
    application: Application, form: dict[str, str], number: str
) -> None:
    answer = application.answer(application.question(), **form)
    page = answer.data.decode()
    assert answer.status == 200
    assert number in page
    assert "<b>nobody" not in page
    assert "pass word" not in page


def test_disabled_user_is_reported_on_page(application: Application) -> None:
    application.cloud.directory.change(application.ann, enabled=False)
    assert b"AADSTS50057" in application.answer(application.question()).data


@pytest.mark.parametrize(
    ("changes", "number"),
    [
        ({"redirect_uri": "https://evil.example/ui/signed-in"}, "AADSTS50011"),
        ({"redirect_uri": ""}, "AADSTS50011"),
        ({"client_id": "11111111-0000-4000-8000-000000000001"}, "AADSTS700016"),
        ({"client_id": ""}, "AADSTS900144"),
    ],
)
def test_invalid_client_or_redirect_uri_is_never_redirected(
    application: Application, changes: dict[str, str], number: str
) -> None:
    for answer in (application.asked(**changes), application.answer(application.question(**changes))):
        assert answer.status == 400
        assert "Location" not in answer.headers
        assert number in answer.data.decode()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"response_type": "token"}, "unsupported_response_type"),
        ({"response_mode": "form_post"}, "unsupported_response_mode"),
        ({"scope": "profile"}, "invalid_request"),
        ({"code_challenge_method": "plain"}, "invalid_request"),
        ({"code_challenge": "short"}, "invalid_request"),
    ],
)
def test_invalid_authorization_request_is_returned_to_application(
    application: Application, changes: dict[str, str], error: str
) -> None:
    told = sent_back(application.asked(**changes))
    assert (told["error"], told["state"]) == (error, "s")


def test_cancelled_sign_in_redirects_without_code(application: Application) -> None:
    told = sent_back(application.answer(application.question(), answer="cancel"))
    assert told["error"] == "access_denied"
    assert "AADSTS65004" in told["error_description"]
    assert "code" not in told


def test_code_is_redeemed_only_with_client_secret_and_only_once(application: Application) -> None:
    code = sent_back(application.answer(application.question()))["code"]
    without = application.redeemed(code=code)
    assert (without.status, without.json()["error_codes"]) == (401, [7000218])
    wrong = application.redeemed(code=code, client_secret="wrong")
    assert (wrong.status, wrong.json()["error_codes"]) == (401, [7000215])
    right = application.redeemed(code=code, client_secret="right", code_verifier=VERIFIER)
    assert right.status == 200
    again = application.redeemed(code=code, client_secret="right", code_verifier=VERIFIER)
    assert (again.status, again.json()["error_codes"]) == (400, [70000])


def test_confidential_client_authenticates_with_certificate(application: Application) -> None:
    key = rsa.generate_private_key(65537, 2048)
    certificate = made_certificate(key)
    application.cloud.directory.change(application.itself, certificates=(certificate,), secret="")
    pem = certificate + in_pem(key)
    client = application.msal({"private_key": pem, "public_certificate": pem})
    flow = client.initiate_auth_code_flow([], redirect_uri=BACK)
    result = client.acquire_token_by_auth_code_flow(flow, sent_back(application.answer(flow["auth_uri"])))
    assert result["id_token_claims"]["oid"] == application.ann.object_id


def test_code_cannot_be_redeemed_without_pkce_verifier(application: Application) -> None:
    code = sent_back(application.answer(application.question()))["code"]
    answer = application.redeemed(code=code, client_secret="right")
    assert answer.json()["error_codes"] == [501481]


def test_code_cannot_be_redeemed_by_another_application(application: Application) -> None:
    other = application.cloud.directory.service_principal("other", "right", redirect_uris=(BACK,))
    code = sent_back(application.answer(application.question()))["code"]
    answer = application.redeemed(code=code, client_id=other.client_id, client_secret="right")
    assert answer.json()["error_codes"] == [70000]
