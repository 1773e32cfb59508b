"""What every description shares: frozen, no unknown fields, quantities that carry their unit, errors with a path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from models import units
from models.errors import InputError, UnitError, UnknownNameError


class Description(BaseModel):
    """A frozen description; every field is validated when it is built, and an unknown one is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def parse(cls, raw: object, path: str = "") -> Self:
        """Build from YAML or JSON data; the first thing that is wrong becomes one clear ``InputError``."""
        if not isinstance(raw, Mapping):
            raise InputError("expected a mapping of names to values", path=path, value=raw)
        try:
            return cls.model_validate(dict(raw))
        except ValidationError as error:
            raise first_problem(cls, error, path) from None


def first_problem(cls: type[BaseModel], error: ValidationError, path: str = "") -> InputError:
    """Translate pydantic's first complaint into this project's error, naming path, value and way out."""
    problem = error.errors(include_url=False)[0]
    parts = [str(part) for part in problem["loc"] if "[" not in str(part)]  # without pydantic's names for the members of a union
    where = ".".join([path, *parts] if path and path.split(".")[-1:] != parts else [path] if path else parts)
    context = problem.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, _UnitProblemError):
        return UnitError(cause.error.message, path=where, value=cause.error.value, way_out=cause.error.way_out)
    if problem["type"] == "extra_forbidden":
        known = field_names(cls, problem["loc"][:-1])
        return UnknownNameError.suggest("field", str(problem["loc"][-1]), known, path=where)
    if problem["type"] == "missing":
        return InputError("is required and missing", path=where, way_out="add it")
    if problem["type"] in ("dict_type", "model_type", "mapping_type"):
        return InputError("expected a mapping of names to values", path=where, value=problem.get("input"))
    message = problem["msg"].removeprefix("Value error, ")
    return InputError(message[0].lower() + message[1:], path=where, value=problem.get("input"))


def field_names(cls: type[BaseModel], location: Iterable[object]) -> list[str]:
    """Names of the fields at ``location`` below ``cls``, for suggestions."""
    current: Any = cls
    for part in location:
        fields = getattr(current, "model_fields", {})
        annotation = fields[part].annotation if part in fields else current
        current = _model_in(annotation)
    return list(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    """The description inside Optional, Mapping and the like."""
    if hasattr(annotation, "model_fields"):
        return annotation
    for argument in reversed(getattr(annotation, "__args__", ())):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


class _UnitProblemError(ValueError):
    """Carries a ``UnitError`` through pydantic, which knows only ``ValueError``."""

    def __init__(self, error: UnitError) -> None:
        super().__init__(error.message)
        self.error = error


def _checked(parse: Any) -> BeforeValidator:
    def run(value: Any) -> Any:
        try:
            return parse(value)
        except UnitError as error:
            raise _UnitProblemError(error) from None

    return BeforeValidator(run)


ByteCount = Annotated[int, _checked(units.parse_bytes), PlainSerializer(lambda v: f"{v} B", when_used="json")]
"""Exact bytes, written ``12 GiB`` or ``12.5 GB``."""
Seconds = Annotated[float, _checked(units.parse_seconds), PlainSerializer(lambda v: f"{v!r} s", when_used="json")]
"""Seconds, written ``7 s`` or ``250 ms``."""
PerSecond = Annotated[float, _checked(units.parse_rate), PlainSerializer(lambda v: f"{v!r} /s", when_used="json")]
"""Events a second, written ``4 /s``."""
Bandwidth = Annotated[float, _checked(units.parse_bandwidth), PlainSerializer(lambda v: f"{v!r} B/s", when_used="json")]
"""Bytes a second, written ``64 GB/s``."""
FlopRate = Annotated[float, _checked(units.parse_flop_rate), PlainSerializer(lambda v: f"{v!r} FLOP/s", when_used="json")]
"""Operations a second, written ``65 GFLOP/s``."""
Watts = Annotated[float, _checked(units.parse_watts), PlainSerializer(lambda v: f"{v!r} W", when_used="json")]
"""Watts, written ``600 W``."""
