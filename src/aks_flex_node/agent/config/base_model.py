"""The base class of all configuration models: frozen, camelCase in files; and the string types that they share."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, AliasChoices, BaseModel, ConfigDict, Field, PlainSerializer

from aks_flex_node.agent.config.secret import redact

ACRONYMS = frozenset(("url", "ip", "cidr", "sku", "gc", "tls"))


def camel(attribute: str) -> str:
    """How an attribute is spelled in a file: `server_url` is `serverURL`, as Kubernetes and Azure write it."""
    first, *words = attribute.split("_")
    return first + "".join(word.upper() if word in ACRONYMS else word.capitalize() for word in words)


def _without_v(version: str) -> str:
    return version.removeprefix("v")


Path = Annotated[str, Field(pattern=r"^/")]
Version = Annotated[str, Field(pattern=r"^v?\d+\.\d+(\.\d+)?([-+.][0-9A-Za-z.-]+)?$"), AfterValidator(_without_v)]
HttpsURL = Annotated[str, Field(pattern=r"^https://[^\s/?#]+$")]
ProxyURL = Annotated[str, PlainSerializer(redact)]  # it may hold a password, which no dump shows


def _add_spellings(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """A schema knows one name per field; the older names that are accepted are added to it."""
    known = schema.get("properties", {})
    for field in model.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            first, *others = [str(choice) for choice in field.validation_alias.choices if "_" not in str(choice)]
            known.update({other: {**known[first], "deprecated": True} for other in others})


class ConfigModel(BaseModel):
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=camel,
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
        json_schema_extra=_add_spellings,
    )
