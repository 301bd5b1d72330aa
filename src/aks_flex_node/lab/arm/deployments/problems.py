"""What is wrong with a template: told by the expression, never by what it came to, which may be a secret."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aks_flex_node.lab.arm.answers import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

Problem = dict[str, Any]


class TemplateError(Exception):
    """A template, or what was given to it, that cannot be deployed."""

    def __init__(self, message: str, code: str = "InvalidTemplate") -> None:
        super().__init__(message)
        self.code = code

    @property
    def refusal(self) -> Refusal:
        return Refusal(400, self.code, f"Deployment template validation failed: '{self}'")


def failed(deployment: str, details: Sequence[Problem]) -> Problem:
    """Of a deployment in which something did not work."""
    return {
        "code": "DeploymentFailed",
        "target": deployment,
        "message": "At least one resource deployment operation failed. The deployment's operations have details.",
        "details": [*details],
    }


def of_resource(resource: str, problem: Problem) -> Problem:
    """What a provider said, with the resource that it said it of."""
    if "target" not in problem:
        return {**problem, "target": resource}
    return {
        "code": "ResourceDeploymentFailure",
        "target": resource,
        "message": "The resource write operation was refused by its provider.",
        "details": [problem],
    }
