"""Refusals as Entra ID words them: the AADSTS numbers are what people search for and what programs look at."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class Refusal:
    number: int
    error: str
    message: str
    status: int = 400

    def words(self, **names: str) -> str:
        return f"AADSTS{self.number}: {self.message.format(**names)}"

    def answer(self, **names: str) -> JSONResponse:
        now = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%SZ}"
        trace, correlation = str(uuid.uuid4()), str(uuid.uuid4())
        seen = f"Trace ID: {trace} Correlation ID: {correlation} Timestamp: {now}"
        document = {
            "error": self.error,
            "error_description": f"{self.words(**names)} {seen}",
            "error_codes": [self.number],
            "timestamp": now,
            "trace_id": trace,
            "correlation_id": correlation,
        }
        return JSONResponse(document, self.status, {"Cache-Control": "no-store"})


NO_TENANT = Refusal(90002, "invalid_request", "Tenant '{tenant}' not found.")
NO_CLIENT = Refusal(
    700016, "unauthorized_client", "Application with identifier '{client}' was not found in the directory."
)
WRONG_SECRET = Refusal(7000215, "invalid_client", "Invalid client secret provided for app '{client}'.", 401)
NO_SECRET = Refusal(
    7000218, "invalid_client", "The request body must contain client_assertion or client_secret.", 401
)
EXPIRED_SECRET = Refusal(
    7000222, "invalid_client", "The provided client secret keys for app '{client}' are expired.", 401
)
DISABLED = Refusal(7000112, "unauthorized_client", "Application '{client}' is disabled.", 401)
WRONG_PASSWORD = Refusal(50126, "invalid_grant", "Error validating credentials due to invalid username or password.")
NO_USER = Refusal(50034, "invalid_grant", "The user account {user} does not exist in the directory.")
USER_DISABLED = Refusal(50057, "invalid_grant", "The user account is disabled.")
WRONG_REDIRECT = Refusal(
    50011,
    "invalid_request",
    "The redirect URI '{redirect}' specified in the request does not match the redirect URIs configured for the "
    "application '{client}'.",
)
NOT_ASKED = Refusal(900144, "invalid_request", "The request must contain the following parameter: '{name}'.")
NO_RESPONSE_TYPE = Refusal(
    700054, "unsupported_response_type", "response_type '{asked}' is not enabled for the application."
)
NO_RESPONSE_MODE = Refusal(70007, "unsupported_response_mode", "'{asked}' is not a supported value of response_mode.")
NO_CHALLENGE_METHOD = Refusal(
    50147, "invalid_request", "Invalid size of code_challenge parameter, or a method that is not S256."
)
NOBODY_SIGNED_IN = Refusal(50058, "login_required", "A silent sign-in request was sent but no user is signed in.")
DECLINED = Refusal(65004, "access_denied", "User declined to consent to access the app.")
BAD_CODE = Refusal(70000, "invalid_grant", "The provided authorization code is invalid or malformed.")
OLD_CODE = Refusal(70008, "invalid_grant", "The provided authorization code has expired. Send a new request.")
USED_CODE = Refusal(54005, "invalid_grant", "OAuth2 Authorization code was already redeemed, please retry.")
OTHER_REDIRECT = Refusal(
    500112,
    "invalid_grant",
    "The reply address '{redirect}' does not match the reply address provided when requesting Authorization code.",
)
WRONG_VERIFIER = Refusal(
    501481,
    "invalid_grant",
    "The Code_Verifier does not match the code_challenge supplied in the authorization request.",
)
OLD_REFRESH = Refusal(70008, "invalid_grant", "The provided refresh token has expired or is not valid.")
NO_GRANT = Refusal(70003, "unsupported_grant_type", "The app requested an unsupported grant type '{grant}'.")
NO_SCOPE = Refusal(90014, "invalid_request", "The required field 'scope' is missing from the credential.")
BAD_ASSERTION = Refusal(50027, "invalid_request", "JWT token is invalid or malformed.")
OLD_ASSERTION = Refusal(
    700024, "invalid_client", "Client assertion is not within its valid time range. Check this machine's clock.", 401
)
UNKNOWN_CERTIFICATE = Refusal(
    700027,
    "invalid_client",
    "The certificate with identifier used to sign the client assertion is not registered on application. "
    "[Reason - The key was not found.]",
    401,
)
EXPIRED_CERTIFICATE = Refusal(
    700027, "invalid_client", "The certificate used to sign the client assertion is expired. [Reason - Expired.]", 401
)
UNKNOWN_ISSUER = Refusal(
    700211, "invalid_client", "No matching federated identity record found for presented assertion issuer.", 401
)
UNKNOWN_SUBJECT = Refusal(
    700213, "invalid_client", "No matching federated identity record found for presented assertion subject.", 401
)
