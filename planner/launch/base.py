"""What every engine's flags share: the context of a launch, the pieces a variable renders to, and the finished command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from models.describe.configuration import Configuration, DraftSource
from models.describe.engine import Engine

CONFIG_FILE = "trtllm.yaml"
DRAFT_PLACEHOLDER = "DRAFT_MODEL"  # stands for a checkpoint that nobody named; a note says so


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchContext:
    """What a command needs beside the configuration. Bytes and tokens are for each device."""

    model: str  # name or path that the server loads
    max_model_len: int  # prompt and output of the longest request
    layers: int | None = None  # of the model: which of them are offloaded
    layer_bytes: int | None = None  # stored bytes of one layer's weights on one device
    gpu_memory_utilization: float | None = None
    kv_pool_bytes: int | None = None
    kv_pool_tokens: int | None = None  # the same pool in tokens, for engines that count them
    block_tokens: int | None = None
    draft_model: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)  # weight format -> checkpoint stored in it
    stored_format: str | None = None  # what ``model`` is stored in
    family: str | None = None  # of the model; some features exist for some families
    ffn_modules: tuple[str, ...] = ("mlp",)  # names of the FFN inside a layer, whose weights are what is offloaded


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration to launch on one engine."""

    configuration: Configuration
    context: LaunchContext
    engine: Engine

    @property
    def rows(self) -> int:
        """Rows of one request in a decode step: the draft and the token it follows."""
        return self.configuration.draft_tokens + 1

    def draft_checkpoint(self) -> tuple[str | None, tuple[str, ...]]:
        """The draft's own checkpoint, None where it has no weights of its own; a placeholder and a note where nobody named one."""
        kind = self.configuration.draft
        if kind not in {DraftSource.MODEL, DraftSource.EAGLE, DraftSource.DFLASH}:
            return None, ()
        if self.context.draft_model is not None:
            return self.context.draft_model, ()
        return DRAFT_PLACEHOLDER, (
            f"draft {kind.value}: {DRAFT_PLACEHOLDER} stands for the draft's checkpoint; put its name or path there",
        )


@dataclass(frozen=True, slots=True)
class Piece:
    """What one variable becomes: arguments, JSON arguments and configuration entries (both merged by key), environment, notes."""

    arguments: tuple[str, ...] = ()
    json_arguments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


Renderer = Callable[[Request], Piece]
Table = Mapping[str, Renderer]


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A command for one engine. ``config`` is what the file ``CONFIG_FILE`` must hold (TensorRT-LLM); empty elsewhere."""

    engine: str
    version: str
    rules_version: str
    program: tuple[str, ...]
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    environment: Mapping[str, str]
    notes: tuple[str, ...]
    launchable: bool
    reasons: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command as one shell line, environment first, quoted."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.environment.items())]
        return " ".join([*variables, shlex.join((*self.program, *self.arguments))])

    @property
    def shell(self) -> str:
        """What a user copies: reasons and notes as comments, the configuration file where there is one, the command."""
        comments = [f"# not launchable: {reason}" for reason in self.reasons] + [f"# {note}" for note in self.notes]
        file = [f"cat > {CONFIG_FILE} <<'YAML'", self.config_text.rstrip(), "YAML"] if self.config else []
        return "\n".join([*comments, *file, self.command])

    @property
    def config_text(self) -> str:
        """The configuration file as YAML; empty where the engine needs none."""
        return yaml.safe_dump(self.as_json()["config"], sort_keys=False) if self.config else ""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the answer's ``launch``."""
        return {
            "engine": self.engine,
            "version": self.version,
            "rules_version": self.rules_version,
            "launchable": self.launchable,
            "reasons": list(self.reasons),
            "program": list(self.program),
            "arguments": list(self.arguments),
            "environment": dict(self.environment),
            "config": json.loads(json.dumps(self.config)),
            "command": self.command,
            "notes": list(self.notes),
        }


def merged(pieces: list[Piece]) -> Piece:
    """All pieces in order; JSON arguments become one argument each, after the plain ones."""
    json_arguments: dict[str, dict[str, Any]] = {}
    config: dict[str, Any] = {}
    environment: dict[str, str] = {}
    for piece in pieces:
        for flag, entries in piece.json_arguments.items():
            json_arguments.setdefault(flag, {}).update(entries)
        _merge_into(config, piece.config)
        environment.update(piece.environment)
    plain = tuple(argument for piece in pieces for argument in piece.arguments)
    encoded = tuple(part for flag, entries in json_arguments.items() for part in (flag, json.dumps(entries)))
    notes = tuple(dict.fromkeys(note for piece in pieces for note in piece.notes))
    return Piece((*plain, *encoded), {}, config, environment, notes)


def _merge_into(target: dict[str, Any], extra: Mapping[str, Any]) -> None:
    for key, value in extra.items():
        if isinstance(value, Mapping):
            inner = target.setdefault(key, {})
            _merge_into(inner, value)
        else:
            target[key] = value


def flag(name: str, *values: object) -> Piece:
    """A flag with its values."""
    return Piece((name, *(str(value) for value in values)))


def noted(*notes: str) -> Piece:
    """No argument: what is done, or cannot be, is said."""
    return Piece(notes=notes)


def front_end_limit(limit: int, why: str) -> str:
    """The admission limit where the engine cannot hold it by itself."""
    return f"admission_limit {limit}: {why}; the proxy in front must answer 503 beyond {limit} requests in flight"


def no_limit_argument(request: Request) -> Piece:
    """An engine without a limit of its own: nothing to say when none is wanted, else who must hold it."""
    limit, engine = request.configuration.admission_limit, request.engine
    if limit is None:
        return noted("admission_limit: none, the queue is not bounded")
    return noted(front_end_limit(limit, f"{engine.title} {engine.rules_version} has no such argument"))


def served_checkpoint(request: Request) -> str:
    """The checkpoint to load: the one stored in the chosen weight format where it is known, else the model."""
    return request.context.checkpoints.get(request.configuration.weight_format, request.context.model)


def weight_conversion(request: Request) -> tuple[str | None, tuple[str, ...]]:
    """What converts the weights at load (``quantization=fp8``), and the note where a stored checkpoint is needed or the format unknown."""
    wanted = request.configuration.weight_format
    if wanted in {"stored", request.context.stored_format}:
        return None, (f"weight_format {wanted}: the checkpoint is loaded as it is",)
    if wanted in request.context.checkpoints:
        return None, (f"weight_format {wanted}: {request.context.checkpoints[wanted]} is stored in it",)
    if wanted not in request.engine.weight_formats:
        return None, (f"weight_format {wanted}: {request.engine.title} {request.engine.rules_version} cannot load it",)
    conversion = request.engine.weight_formats[wanted]
    if conversion is None:
        return None, (f"weight_format {wanted}: give a checkpoint stored in {wanted} as the model; it is not converted at load",)
    return conversion, ()
