"""Base class of all configuration models (frozen, camelCase in files), shared string types, and the conversion of
models back to JSON documents.
"""

from __future__ import annotations

import types
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo, fields

from aks_flex_node.lean_dataclass import frozen
from aks_flex_node.redaction import MASK, redact
from aks_flex_node.settings.secret import Secret
from aks_flex_node.settings.setting import Setting

ACRONYMS = frozenset(("url", "ip", "cidr", "sku", "gc", "tls"))
PATH_PATTERN = r"^/"
VERSION_PATTERN = r"^v?\d+\.\d+(\.\d+)?([-+.][0-9A-Za-z.-]+)?$"
HTTPS_URL_PATTERN = r"^https://[^\s/?#]+$"
TIME_OF_DAY_PATTERN = "^([01][0-9]|2[0-3]):[0-5][0-9]$"


def camel(attribute: str) -> str:
    """Returns the spelling of an attribute in files: `server_url` is `serverURL`, as in Kubernetes and Azure."""
    first, *words = attribute.split("_")
    return first + "".join(word.upper() if word in ACRONYMS else word.capitalize() for word in words)


class ConfigModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename=camel):
    """A section of the configuration. Constructors do not validate. Use `conversion` for external input."""


class DefaultText(str):
    """A default that can be distinguished from the same text set by an operator."""

    __slots__ = ()


Path = Annotated[str, Meta(pattern=PATH_PATTERN)]
Version = Annotated[str, Meta(pattern=VERSION_PATTERN)]
HttpsURL = Annotated[str, Meta(pattern=HTTPS_URL_PATTERN)]
TimeOfDay = Annotated[str, Meta(pattern=TIME_OF_DAY_PATTERN)]
MAY_HOLD_PASSWORD = Meta(extra={"mayHoldPassword": True})
ProxyURL = Annotated[str, MAY_HOLD_PASSWORD]

Model = TypeVar("Model", bound=ConfigModel)
LeaveOut = Literal["nothing", "defaults", "nulls"]


@frozen
class FieldType:
    """A parsed type annotation. Values are checked against it often, so it has all that they need."""

    annotation: Any
    inner: Any  # without metadata, and without None
    metadata: tuple[Any, ...]
    optional: bool
    origin: Any  # tuple, dict or Literal, else None
    item: FieldType | None  # of the items of a list, or of the values of a map
    choices: tuple[Any, ...]
    pattern: str
    setting: Setting | None  # the entry of the table; None for a section

    @classmethod
    @cache
    def of(cls, annotation: Any) -> FieldType:
        inner, metadata, optional = _parts(annotation)
        origin, of = get_origin(inner), get_args(inner)
        item = {tuple: 0, dict: 1}.get(origin)
        return cls(
            annotation,
            inner,
            metadata,
            optional,
            origin,
            None if item is None else cls.of(of[item]),
            of if origin is Literal else (),
            next((each.pattern for each in metadata if isinstance(each, Meta) and each.pattern), ""),
            next((each for each in metadata if isinstance(each, Setting)), None),
        )

    def metadata_value(self, name: str) -> Any:
        """Returns a constraint or description, such as `ge` or `max_length`, or None if it is not set."""
        return next((value for each in self.metadata if (value := getattr(each, name, None)) is not None), None)


def _parts(annotation: Any) -> tuple[Any, tuple[Any, ...], bool]:
    if get_origin(annotation) is Annotated:
        first, *metadata = get_args(annotation)
        inner, below, optional = _parts(first)
        return inner, (*metadata, *below), optional
    if get_origin(annotation) in (Union, types.UnionType):
        inner, below, _ = _parts(next(each for each in get_args(annotation) if each is not type(None)))
        return inner, below, True
    return annotation, (), False


@cache
def model_fields(model: type[ConfigModel]) -> tuple[tuple[FieldInfo, FieldType], ...]:
    """Returns the fields of a model with their types. msgspec parses the annotations at each call."""
    return tuple((info, FieldType.of(info.type)) for info in fields(model))


def replace(model: Model, **changes: object) -> Model:
    """Returns a copy of a model with other values for these attributes."""
    return msgspec.structs.replace(model, **changes)


def default_of(info: FieldInfo) -> object:
    """Returns the default of a field, or `msgspec.NODEFAULT` if the field is required."""
    return info.default if info.default_factory is msgspec.NODEFAULT else info.default_factory()


def to_document(model: ConfigModel, leave_out: LeaveOut = "nothing", *, reveal: bool = False) -> dict[str, Any]:
    """Returns a model as a JSON document, spelled as in files. Masks passwords and secrets unless `reveal` is set."""
    document: dict[str, Any] = {}
    for info, shape in model_fields(type(model)):
        value = getattr(model, info.name)
        if (leave_out == "defaults" and value == default_of(info)) or (leave_out == "nulls" and value is None):
            continue
        if isinstance(value, str) and not reveal and MAY_HOLD_PASSWORD in shape.metadata:
            value = redact(value)
        document[info.encode_name] = _to_json(value, leave_out, reveal)
    return document


def _to_json(value: Any, leave_out: LeaveOut, reveal: bool) -> Any:
    if isinstance(value, ConfigModel):
        return to_document(value, leave_out, reveal=reveal)
    if isinstance(value, Secret):
        return value.reveal() if reveal else MASK
    if isinstance(value, dict):
        return {name: _to_json(each, leave_out, reveal) for name, each in value.items()}
    return [_to_json(each, leave_out, reveal) for each in value] if isinstance(value, list | tuple) else value
