"""The step model of a model on a device before any efficiency is known: peaks and work, from the specification and the shape."""

from __future__ import annotations

from models.describe.architecture import Architecture
from models.describe.hardware import Device
from models.facts.flops import flops_per_logit_row, flops_per_pair, flops_per_token
from models.facts.weights import weight_read
from models.kernels.step import PHYSICAL, StepModel


def step_template(arch: Architecture, device: Device, *, precision: str = "bf16", tensor_parallel: int = 1) -> StepModel:
    """PHYSICAL form with every efficiency 1 (the floor); ``precision`` names the peak that the matrix products run at.

    Peaks and weight bytes are those of all ranks together. Layers whose attention is limited by a window or an indexer are not counted
    in the FLOPs of a pair. Raises ``NotCoveredError`` for a peak that no source states, ``ContradictionError`` for indivisible heads.
    """
    read = weight_read(arch, tp=tensor_parallel)
    return StepModel(
        form=PHYSICAL, peak_flops=tensor_parallel * device.peak(precision),
        peak_bytes_per_s=tensor_parallel * device.memory_bandwidth_bytes_per_s, flops_per_token=float(flops_per_token(arch)),
        flops_per_logit_row=float(flops_per_logit_row(arch)), flops_per_pair=float(flops_per_pair(arch)),
        weight_bytes=float(read.fixed * tensor_parallel), expert_bytes=float(read.experts * tensor_parallel),
        expert_fraction=read.expert_fraction,
    )  # fmt: skip
