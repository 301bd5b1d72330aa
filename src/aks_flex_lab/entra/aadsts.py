"""Error responses of Entra ID with their AADSTS numbers."""

from __future__ import annotations

import datetime
import uuid
from dataclasses import dataclass

from starlette.responses import JSONResponse


@dataclass(frozen=True)
class EntraError:
    number: int
    error: str
    message: str
    status: int = 400

    def text(self, **names: str) -> str:
        return f"AADSTS{self.number}: {self.message.format(**names)}"

    def response(self, **names: str) -> JSONResponse:
        now = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M:%SZ}"
        trace_id, correlation = str(uuid.uuid4()), str(uuid.uuid4())
        seen = f"Trace ID: {trace_id} Correlation ID: {correlation} Timestamp: {now}"
        document = {
            "error": self.error,
            "error_description": f"{self.text(**names)} {seen}",
            "error_codes": [self.number],
            "timestamp": now,
            "trace_id": trace_id,
            "correlation_id": correlation,
        }
        return JSONResponse(document, self.status, {"Cache-Control": "no-store"})


NO_TENANT = EntraError(90002, "invalid_request", "Tenant '{tenant}' not found.")
NO_CLIENT = EntraError(
    700016, "unauthorized_client", "Application with identifier '{client}' was not found in the directory."
)
WRONG_SECRET = EntraError(7000215, "invalid_client", "Invalid client secret provided for app '{client}'.", 401)
NO_SECRET = EntraError(
    7000218, "invalid_client", "The request body must contain client_assertion or client_secret.", 401
)
EXPIRED_SECRET = EntraError(
    7000222, "invalid_client", "The provided client secret keys for app '{client}' are expired.", 401
)
DISABLED = EntraError(7000112, "unauthorized_client", "Application '{client}' is disabled.", 401)
WRONG_PASSWORD = EntraError(
    50126, "invalid_grant", "Error validating credentials due to invalid username or password."
)
NO_USER = EntraError(50034, "invalid_grant", "The user account {user} does not exist in the directory.")
USER_DISABLED = EntraError(50057, "invalid_grant", "The user account is disabled.")
WRONG_REDIRECT = EntraError(
    50011,
    "invalid_request",
    "The redirect URI '{redirect}' specified in the request does not match the redirect URIs configured for the "
    "application '{client}'.",
)
MISSING_PARAMETER = EntraError(
    900144, "invalid_request", "The request must contain the following parameter: '{name}'."
)
NO_RESPONSE_TYPE = EntraError(
    700054, "unsupported_response_type", "response_type '{asked}' is not enabled for the application."
)
NO_RESPONSE_MODE = EntraError(
    70007, "unsupported_response_mode", "'{asked}' is not a supported value of response_mode."
)
NO_CHALLENGE_METHOD = EntraError(
    50147, "invalid_request", "Invalid size of code_challenge parameter, or a method that is not S256."
)
DECLINED = EntraError(65004, "access_denied", "User declined to consent to access the app.")
BAD_CODE = EntraError(70000, "invalid_grant", "The provided authorization code is invalid or malformed.")
OLD_CODE = EntraError(70008, "invalid_grant", "The provided authorization code has expired. Send a new request.")
DEVICE_PENDING = EntraError(
    70016, "authorization_pending", "OAuth 2.0 device flow error. Authorization is pending. Continue polling."
)
DEVICE_DECLINED = EntraError(70013, "authorization_declined", "The user declined to sign in with the device code.")
BAD_DEVICE_CODE = EntraError(70018, "bad_verification_code", "The verification code is not valid.")
OLD_DEVICE_CODE = EntraError(70020, "expired_token", "The provided device code has expired.")
OTHER_REDIRECT = EntraError(
    500112,
    "invalid_grant",
    "The reply address '{redirect}' does not match the reply address provided when requesting Authorization code.",
)
WRONG_VERIFIER = EntraError(
    501481,
    "invalid_grant",
    "The Code_Verifier does not match the code_challenge supplied in the authorization request.",
)
OLD_REFRESH = EntraError(70008, "invalid_grant", "The provided refresh token has expired or is not valid.")
NO_GRANT = EntraError(70003, "unsupported_grant_type", "The app requested an unsupported grant type '{grant}'.")
NO_SCOPE = EntraError(90014, "invalid_request", "The required field 'scope' is missing from the credential.")
BAD_ASSERTION = EntraError(50027, "invalid_request", "JWT token is invalid or malformed.")
OLD_ASSERTION = EntraError(
    700024, "invalid_client", "Client assertion is not within its valid time range. Check this machine's clock.", 401
)
UNKNOWN_CERTIFICATE = EntraError(
    700027,
    "invalid_client",
    "The certificate with identifier used to sign the client assertion is not registered on application. "
    "[Reason - The key was not found.]",
    401,
)
EXPIRED_CERTIFICATE = EntraError(
    700027, "invalid_client", "The certificate used to sign the client assertion is expired. [Reason - Expired.]", 401
)
UNKNOWN_ISSUER = EntraError(
    700211, "invalid_client", "No matching federated identity record found for presented assertion issuer.", 401
)
UNKNOWN_SUBJECT = EntraError(
    700213, "invalid_client", "No matching federated identity record found for presented assertion subject.", 401
)
