"""Runs that one calibration may be fitted on: same device, engine, model, weight format, parallelism and use of CUDA graphs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from models import facts
from models.catalog.calibrations_catalog import calibration_names
from models.catalog.devices import load_device
from models.catalog.engines import canonical_name
from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.errors import GoodputError, InputError, NotCoveredError
from models.facts.formats import weight_format
from models.readers.load import load_architecture
from planner.ports import StoredRun
from planner.records import RunSetup
from planner.resolve import main_precision, weight_variants

_AS_STORED = {"auto", "stored", "bf16", "bfloat16", "fp16", "f16", "float16", "half", "none"}
_MOST_SETUPS = 1000
_WORD = re.compile(r"[^A-Za-z0-9.+-]+")


@dataclass(frozen=True, order=True)
class Key:
    """What makes runs comparable; names as in the catalogues."""

    device: str
    engine: str
    model: str
    weight_format: str
    tensor_parallel: int
    cuda_graphs: bool

    @property
    def default_name(self) -> str:
        """A name for the calibration of this group that says what it is for."""
        words = [_short(self.device), self.engine, _short(self.model), self.weight_format]
        words += [f"tp{self.tensor_parallel}"] if self.tensor_parallel > 1 else []
        words += [] if self.cuda_graphs else ["eager"]
        name = _WORD.sub("-", "-".join(words))[:100].strip("-.+")
        return f"my-{name}"[:100] if name in calibration_names() else name

    def __str__(self) -> str:
        graphs = "" if self.cuda_graphs else ", no CUDA graphs"
        return f"{self.model} ({self.weight_format}) with {self.engine} on {self.tensor_parallel} x {self.device}{graphs}"


def _short(name: str) -> str:
    """The last part of a name with a slash, or of a file's path without its kind."""
    last = name.rsplit("/", maxsplit=1)[-1]
    return re.sub(r"\.(gguf|json|ya?ml)$", "", last)


@dataclass(frozen=True)
class Group:
    """Runs of one key with the model and device that they were made on."""

    key: Key
    architecture: Architecture
    device: Device
    runs: tuple[StoredRun, ...]


@dataclass(frozen=True)
class Unused:
    """A run, or a part of it, that no fit reads, and why."""

    run: int
    reason: str


@dataclass(frozen=True)
class Wanted:
    """Which runs: None means any. Names and aliases of the catalogues."""

    device: str | None = None
    engine: str | None = None
    model: str | None = None
    tensor_parallel: int | None = None
    excluded: frozenset[int] = frozenset()

    def resolved(self) -> Wanted:
        """The same with the catalogue's names; an unknown device or engine is an error."""
        device = load_device(self.device).id if self.device else None
        engine = canonical_name(self.engine) if self.engine else None
        return Wanted(device, engine, self.model, self.tensor_parallel, self.excluded)

    def takes(self, key: Key) -> bool:
        """Whether a group is wanted."""
        model = self.model is None or self.model.lower() in (key.model.lower(), key.model.rsplit("/", maxsplit=1)[-1].lower())
        device = self.device in (None, key.device) and self.engine in (None, key.engine)
        return model and device and self.tensor_parallel in (None, key.tensor_parallel)


def grouped(runs: Iterable[StoredRun], wanted: Wanted | None = None) -> tuple[tuple[Group, ...], tuple[Unused, ...]]:
    """Runs by key; those that belong to no group are named with the reason."""
    wanted = (wanted or Wanted()).resolved()
    found: dict[Key, list[StoredRun]] = {}
    shapes: dict[Key, Architecture] = {}
    unused: list[Unused] = []
    keys = Keys()
    for run in runs:
        if run.id in wanted.excluded:
            unused.append(Unused(run.id, "excluded as asked"))
            continue
        try:
            key, architecture = keys.of(run.record.setup)
        except GoodputError as error:
            unused.append(Unused(run.id, str(error)))
            continue
        if wanted.takes(key):
            found.setdefault(key, []).append(run)
            shapes[key] = architecture
    groups = tuple(Group(key, shapes[key], load_device(key.device), tuple(found[key])) for key in sorted(found))
    return groups, tuple(unused)


class Keys:
    """``key_of`` for many runs: setups that say the same are looked up once. Lives as long as one use of it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[Key, Architecture] | GoodputError] = {}

    def of(self, setup: RunSetup) -> tuple[Key, Architecture]:
        """The key and the model's shape, or the error again."""
        said = setup.model_copy(update={"flags": {}}).model_dump_json(exclude_none=True)
        if said not in self._known:
            if len(self._known) >= _MOST_SETUPS:
                self._known.clear()
            try:
                self._known[said] = key_of(setup)
            except GoodputError as error:
                self._known[said] = error
        found = self._known[said]
        if isinstance(found, GoodputError):
            raise found
        return found


def key_of(setup: RunSetup) -> tuple[Key, Architecture]:
    """The key of a setup and the model's shape in the format that ran; what is missing or not covered is an error."""
    for name in ("device", "engine", "model"):
        if getattr(setup, name) is None:
            raise InputError("is not known", path=name, way_out=f"import the file with --{name}")
    assert setup.device is not None
    assert setup.engine is not None
    assert setup.model is not None
    for name in ("pipeline_parallel", "data_parallel"):
        if (getattr(setup, name) or 1) > 1:
            raise NotCoveredError("no step model covers it", path=name, value=getattr(setup, name))
    if setup.disaggregated or setup.attention_data_parallel:
        raise NotCoveredError("no step model covers disaggregated serving or attention data parallelism")
    device = load_device(setup.device)
    architecture = _in_format(setup, load_architecture(setup.model))
    engine = canonical_name(setup.engine)
    graphs = setup.cuda_graphs if setup.cuda_graphs is not None else True
    tp = setup.tensor_parallel or 1
    facts.weight_read(architecture, tp=tp)  # indivisible heads are refused here
    return Key(device.id, engine, setup.model, main_precision(architecture), tp, graphs), architecture


def _in_format(setup: RunSetup, architecture: Architecture) -> Architecture:
    """The model's shape with the weights that the run says it had."""
    stated = (setup.weight_format or setup.precision or "stored").lower()
    variants = weight_variants(setup.model or "", architecture)
    if stated in _AS_STORED:
        return architecture
    alias = weight_format(stated) if stated not in variants else None
    for name in (stated, alias.name if alias else stated):
        for precision, variant in variants.items():
            if precision == name or precision.startswith(f"{name}_"):
                return variant
    raise NotCoveredError(
        "the model has no known shape in this weight format", path="weight_format", value=stated,
        way_out=f"name the quantised checkpoint with --model; known formats: {', '.join(variants)}",
    )  # fmt: skip
