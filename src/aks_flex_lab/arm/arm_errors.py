"""Error responses in the format and with the codes of Azure Resource Manager."""

from __future__ import annotations

from starlette.responses import JSONResponse


class LabArmError(Exception):
    def __init__(self, status: int, code: str, message: str, challenge: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.challenge = challenge

    def response(self) -> JSONResponse:
        headers = {"x-ms-failure-cause": "gateway", "x-ms-error-code": self.code}
        if self.challenge:
            headers["WWW-Authenticate"] = self.challenge
        return JSONResponse({"error": {"code": self.code, "message": self.message}}, self.status, headers)


def unauthenticated(code: str, message: str, login: str, tenant: str) -> LabArmError:
    where = f'authorization_uri="{login}/{tenant}"'
    challenge = f'Bearer {where}, error="invalid_token", error_description="{message}"'
    return LabArmError(401, code, message, challenge)


def unauthorized(principal: str, action: str, scope: str) -> LabArmError:
    return LabArmError(
        403,
        "AuthorizationFailed",
        f"The client '{principal}' with object id '{principal}' does not have authorization to perform action "
        f"'{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please refresh "
        "your credentials.",
    )


def invalid_content() -> LabArmError:
    return LabArmError(400, "InvalidRequestContent", "The request content was invalid.")


def not_found(what: str) -> LabArmError:
    return LabArmError(404, "ResourceNotFound", f"The Resource '{what}' was not found.")
