"""Errors of templates and deployments. Messages quote expressions, never values, which may be secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_lab.arm.arm_errors import LabArmError

if TYPE_CHECKING:
    from collections.abc import Sequence

ErrorDocument = dict[str, Any]


class TemplateError(Exception):
    """A template or its parameters are invalid."""

    def __init__(self, message: str, code: str = "InvalidTemplate") -> None:
        super().__init__(message)
        self.code = code

    @property
    def refusal(self) -> LabArmError:
        return LabArmError(400, self.code, f"Deployment template validation failed: '{self}'")


def deployment_failed(deployment: str, details: Sequence[ErrorDocument]) -> ErrorDocument:
    """Returns the error of a failed deployment."""
    return {
        "code": "DeploymentFailed",
        "target": deployment,
        "message": "At least one resource deployment operation failed. The deployment's operations have details.",
        "details": [*details],
    }


def resource_failed(resource: str, problem: ErrorDocument) -> ErrorDocument:
    """Returns a provider's error together with its resource."""
    if "target" not in problem:
        return {**problem, "target": resource}
    return {
        "code": "ResourceDeploymentFailure",
        "target": resource,
        "message": "The provider rejected the resource write operation.",
        "details": [problem],
    }
