"""The base class of request bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from aks_flex_rp.arm.errors import Problem, invalid_request, json_path

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails
    from typing_extensions import Self


class WireModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
        serialize_by_alias=True,
        hide_input_in_errors=True,
    )

    @classmethod
    def parse(cls, document: dict[str, Any], *above: str) -> Self | list[Problem]:
        """Returns the body, or all problems. A value of null means the same as an omitted one."""
        try:
            return cls.model_validate({name: value for name, value in document.items() if value is not None})
        except ValidationError as error:
            return [_problem(each, *above) for each in error.errors(include_url=False, include_input=False)]

    @classmethod
    def read(cls, document: dict[str, Any]) -> Self:
        """Returns the body. Raises ArmError with all problems."""
        found = cls.parse(document)
        if isinstance(found, list):
            raise invalid_request(found)
        return found


def _problem(error: ErrorDetails, *above: str) -> Problem:
    """Translates a pydantic error, without the value, which may be a secret."""
    location = json_path(*above, *(step for step in error["loc"] if step != "[key]"))
    match error["type"]:
        case "extra_forbidden":
            return Problem(location, "Unknown property. Correct its name, or remove it.")
        case "missing":
            return Problem(location, "This property is needed and is missing.")
        case "string_pattern_mismatch":
            return Problem(location, f"The value does not match the pattern {error['ctx']['pattern']}.")
        case "literal_error":
            return Problem(location, f"The value must be one of {error['ctx']['expected']}.")
        case "model_type" | "dict_type" | "model_attributes_type":
            return Problem(location, "The value must be an object.")
        case _:
            message = error["msg"].removeprefix("Input ").rstrip(".")
            return Problem(location, f"The value {message}." if message.startswith("should") else f"{message}.")
