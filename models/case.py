"""Everything that a closed-form prediction needs, read once: the scenario with its model, device, engine and calibration resolved.

``BranchAxes`` lists the values of the variables that change coefficients; their product, in this order, is the branch axis.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from models.describe.architecture import Architecture
from models.describe.calibration import Calibration
from models.describe.configuration import Configuration, DraftSource, KvFormat
from models.describe.engine import Engine
from models.describe.hardware import Device
from models.describe.scenario import Scenario
from models.describe.workload import RequestClass

Speculation = tuple[DraftSource, int]
Graphs = tuple[bool, tuple[int, ...], bool]
"""Whether graphs are captured, for which sizes (none listed: the engine's own), and whether a size counts sequences instead of rows."""


@dataclass(frozen=True)
class Branch:
    """One choice of every variable that changes coefficients."""

    tensor_parallel: int
    weight_format: str
    kv_format: KvFormat
    prefix_sharing: bool
    speculation: Speculation
    prefetch_buffers: int
    graphs: Graphs
    prefill_chunk: int | None


@dataclass(frozen=True)
class BranchAxes:
    """Values of each branch variable; the branch axis is their product, the last one fastest."""

    tensor_parallel: tuple[int, ...]
    weight_format: tuple[str, ...]
    kv_format: tuple[KvFormat, ...]
    prefix_sharing: tuple[bool, ...]
    speculation: tuple[Speculation, ...]
    prefetch_buffers: tuple[int, ...]
    graphs: tuple[Graphs, ...]
    prefill_chunk: tuple[int | None, ...]

    def lists(self) -> tuple[tuple[object, ...], ...]:
        """The axes in order."""
        return (
            self.tensor_parallel, self.weight_format, self.kv_format, self.prefix_sharing,
            self.speculation, self.prefetch_buffers, self.graphs, self.prefill_chunk,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(len(axis) for axis in self.lists())

    def branches(self) -> list[Branch]:
        """All branches, in axis order."""
        return [Branch(*values) for values in product(*self.lists())]  # type: ignore[arg-type]

    @classmethod
    def of(cls, c: Configuration) -> BranchAxes:
        """The single branch of one configuration."""
        return cls(
            (c.tensor_parallel,), (c.weight_format,), (c.kv_format,), (c.prefix_sharing,), ((c.draft, c.draft_tokens),),
            (c.prefetch_buffers,), ((c.cuda_graphs, c.captured_sizes, False),), (c.prefill_chunk,),
        )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A scenario with its names resolved. ``weights`` maps each weight format that the model exists in to its architecture."""

    scenario: Scenario
    class_name: str
    request: RequestClass
    weights: dict[str, Architecture]
    stored_format: str
    device: Device
    engine: Engine
    calibration: Calibration
    draft_models: dict[DraftSource, Architecture] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    concurrency: int = 256  # requests that may be in the system at once where no burst says so

    @property
    def architecture(self) -> Architecture:
        """The model as the scenario names it."""
        return self.weights[self.stored_format]

    @property
    def block_tokens(self) -> int:
        """Tokens of a KV block: the scenario's, or the engine's default."""
        return self.scenario.engine.block_tokens or self.engine.block_tokens

    @property
    def requests(self) -> int:
        """Requests of the burst; under a rate or a trace, the most that are in the system at once."""
        return self.request.arrivals.burst or self.concurrency

    @property
    def memory_limit(self) -> int:
        """Bytes of one device for this engine process: the stated share, or the driver's total times the utilisation."""
        hardware = self.scenario.hardware
        if hardware.memory is not None:
            return hardware.memory
        utilization = self.scenario.engine.gpu_memory_utilization or self.engine.gpu_memory_utilization or 1.0
        return int(self.device.memory_bytes * utilization)

    @property
    def host_link(self) -> float | None:
        """Bytes/s from host to device, one direction."""
        return self.scenario.hardware.host_link or self.device.host_link_bytes_per_s
