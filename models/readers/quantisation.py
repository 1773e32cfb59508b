"""How a checkpoint stores its matrices: ``quantization_config`` / ``hf_quant_config.json`` to one stored format for each module.

Covered: fp8 (blocks, rows or whole tensors), awq, gptq, auto-round, bitsandbytes, compressed-tensors,
modelopt (FP8, NVFP4, MXFP8, mixed precision), mxfp4.
Rules common to all: embeddings, head, routers, norms and vision towers stay native unless they are named; excluded modules stay native.
An unknown method is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from models.describe.architecture import BF16, StoredFormat, Tensor
from models.errors import FileFormatError, NotCoveredError
from models.facts.formats import WEIGHT_FORMATS
from models.readers.keys import LARGEST, Keys
from models.readers.modules import Excluded, collapse_names, find_module, module_names

_SCALE_BITS = {"fp32": 32, "bf16": 16, "e8m0": 8}
_NEVER_BY_DEFAULT = ("router", "control", "embedding", "position", "head", "vision", "buffer", "norm")


@dataclass(frozen=True, slots=True)
class Scheme:
    """``explicit``: formats by module name; ``default``: format of every other matrix that is not excluded (None = native)."""

    name: str = "none"
    explicit: dict[str, StoredFormat] = field(default_factory=dict)
    default: StoredFormat | None = None
    experts: StoredFormat | None = None
    excluded: Excluded = field(default_factory=Excluded)
    kv_format: str = "auto"
    notes: tuple[str, ...] = ()

    @property
    def by_layer(self) -> bool:
        """Whether precision depends on the layer's index, beyond its kind."""
        return self.excluded.by_layer or any("layers." in name for name in self.explicit)

    def format_of(self, tensor: Tensor, module: str, native: StoredFormat) -> StoredFormat:
        """Stored format of ``tensor``, whose module is called ``module`` (``layers.7.self_attn.q_proj``)."""
        unquantised = native if tensor.format is BF16 else tensor.format
        if not tensor.linear and tensor.role != "embedding":
            return unquantised
        found = find_module(module, self.explicit)
        if found is not None:
            return found
        if tensor.role in _NEVER_BY_DEFAULT or tensor.format is not BF16 or self.excluded.matches(module):
            return unquantised
        usual = self.experts if tensor.role == "expert" and self.experts else self.default
        return usual or unquantised


def read_scheme(top: Keys, text: Keys, beside: dict[str, Any] | None, scale: str) -> Scheme:
    """The scheme of a configuration; ``beside`` is ``hf_quant_config.json``, ``scale`` the family's dtype of FP8 block scales."""
    found = top.child("quantization_config") or text.child("quantization_config") or text.child("compression_config")
    other = Keys(beside, "hf_quant_config").child("quantization") if beside else None
    experts = text.text("expert_dtype")
    if found is None and other is None:
        return Scheme()
    if found is None or not (found.has("quant_method") or found.has("quant_algo")):
        if other is None:
            raise FileFormatError("names no method", path=(found or top).where("quant_method"), way_out="add quant_method")
        return _modelopt(other)
    method = found.text("quant_method", "modelopt")
    if method in ("fp8", "fbgemm_fp8"):
        return _fp8(found, scale, experts)
    builders = {
        "awq": _integer,
        "gptq": _integer,
        "auto-round": _integer,
        "bitsandbytes": _bitsandbytes,
        "compressed-tensors": _compressed_tensors,
        "modelopt": _modelopt,
        "modelopt_fp4": _modelopt,
        "mxfp4": _mxfp4,
    }
    if method not in builders:
        known = ", ".join([*builders, "fp8"])
        raise NotCoveredError(
            "cannot interpret this quantisation", path=found.where("quant_method"), value=method, way_out=f"known: {known}"
        )
    return builders[method](found)


def _excluded(q: Keys, keys: tuple[str, ...] = ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers")) -> Excluded:
    names: list[Any] = []
    for key in keys:
        names += q.items(key) or []
    if not all(isinstance(name, str) for name in names):
        raise FileFormatError("expected module names", path=q.where("ignore"), value=names, way_out="correct the list")
    return Excluded.from_patterns(names)


def _block(q: Keys) -> tuple[int, int] | None:
    sizes = q.items("weight_block_size")
    if sizes is None:
        return None
    if len(sizes) != 2 or not all(isinstance(n, int) and 0 < n <= 1 << 20 for n in sizes):
        raise FileFormatError("expected two sizes", path=q.where("weight_block_size"), value=sizes, way_out="for example [128, 128]")
    return sizes[0], sizes[1]


def _fp8(q: Keys, scale: str, expert_dtype: str) -> Scheme:
    block = _block(q)
    static = 4 if q.text("activation_scheme", "dynamic") == "static" else 0
    if block is None:
        rows = 1 if q.text("quant_method") == "fbgemm_fp8" else 0  # a scale for each output row, or one for the whole matrix
        default = StoredFormat("fp8", 8, scale_bits=32, group_rows=rows, tensor_bytes=static)
    else:
        default = StoredFormat("fp8", 8, scale_bits=_SCALE_BITS[scale], group_rows=block[0], group_cols=block[1], tensor_bytes=static)
    experts = WEIGHT_FORMATS["mxfp4"] if expert_dtype == "fp4" else None
    return Scheme("fp8", _listed(q), default, experts, _excluded(q, ("modules_to_not_convert",)))  # other lists are about other precisions


def _integer(q: Keys) -> Scheme:
    """AWQ and GPTQ: packed integers, zeros of the same width and FP16 scales for each group; GPTQ adds a group index for each column."""
    method, bits = q.text("quant_method"), q.number("bits", default=q.number("w_bit", default=4))
    key, group = q.find("group_size")
    size = 0 if group == -1 else q.number("group_size", default=q.number("q_group_size", default=128))
    if bits not in (2, 3, 4, 8):
        raise NotCoveredError("unknown width", path=q.where("bits"), value=bits, way_out="2, 3, 4 or 8")
    del key
    zeros = bits if method in ("gptq", "auto-round") or q.flag("zero_point", default=True) else 0
    stored = StoredFormat(f"int{bits}", bits, scale_bits=16, group_cols=size, zero_bits=zeros, column_bytes=4 if method == "gptq" else 0)
    return Scheme(method, {}, stored, None, _excluded(q))


def _bitsandbytes(q: Keys) -> Scheme:
    """NF4 / FP4 blocks of 64 with FP32 scales, or 8-bit ones under a second quantisation; or int8 with an FP32 scale a row."""
    excluded = _excluded(q, ("llm_int8_skip_modules",))
    if not q.flag("load_in_4bit"):
        return Scheme("bitsandbytes", {}, StoredFormat("int8", 8, scale_bits=32), None, excluded)
    double = q.flag("bnb_4bit_use_double_quant")
    notes = ("nested scales (4 bytes for 16384 elements) are left out",) if double else ()
    return Scheme("bitsandbytes", {}, StoredFormat("int4", 4, scale_bits=8 if double else 32, group_cols=64), None, excluded, notes=notes)


def _mxfp4(q: Keys) -> Scheme:
    """OpenAI's layout: routed experts alone."""
    return Scheme("mxfp4", {}, None, WEIGHT_FORMATS["mxfp4"], _excluded(q))


def _compressed_tensors(q: Keys) -> Scheme:
    groups = q.require_child("config_groups")
    default: StoredFormat | None = None
    explicit: dict[str, StoredFormat] = {}
    for name in groups.values:
        group = groups.require_child(name)
        stored = _group_format(group.require_child("weights"), group.text("format") or q.text("format"), q)
        targets = group.items("targets") or ["Linear"]
        if "Linear" in targets:
            default = stored
        else:
            explicit |= dict.fromkeys(module_names(targets), stored)
    return Scheme("compressed-tensors", explicit, default, None, _excluded(q), _kv_scheme(q))


def _group_format(w: Keys, layout: str, q: Keys) -> StoredFormat:
    """One ``weights`` description: bits, type, strategy and packing."""
    bits, kind, strategy = w.number("num_bits"), w.text("type", "int"), w.text("strategy", "tensor")
    group = 0 if w.find("group_size")[1] == -1 else w.number("group_size", default=0, least=0)
    if layout in ("mxfp4-pack-quantized", "mxfp8-quantized") or "mxfp" in layout:
        return StoredFormat(f"mxfp{bits}", bits, scale_bits=8, group_cols=group or 32)
    if kind == "float" and bits == 4:
        return StoredFormat("nvfp4", 4, scale_bits=8, group_cols=group or 16, tensor_bytes=8)
    name = f"fp{bits}" if kind == "float" else f"int{bits}"
    shape_bytes = 16 if layout == "pack-quantized" else 0
    zeros = 0 if w.flag("symmetric", default=True) else bits
    if strategy == "block":
        sizes = w.items("block_structure") or [128, 128]
        return StoredFormat(name, bits, scale_bits=32, group_rows=sizes[0], group_cols=sizes[1])
    rows = {"tensor": 0, "channel": 1, "group": 1}.get(strategy)
    if rows is None or kind not in ("int", "float"):
        raise NotCoveredError(
            "cannot interpret these weights", path=w.where("strategy"), value=strategy, way_out=f"see {q.where('config_groups')}"
        )
    scale = 32 if strategy == "tensor" else 16
    return StoredFormat(name, bits, scale_bits=scale, group_rows=rows, group_cols=group, zero_bits=zeros, tensor_bytes=shape_bytes)


def _kv_scheme(q: Keys) -> str:
    _, scheme = q.find("kv_cache_scheme")
    _, algorithm = q.find("kv_cache_quant_algo")
    if isinstance(scheme, dict):
        return "fp8_e4m3" if scheme.get("num_bits") == 8 and scheme.get("type") == "float" else "auto"
    return "fp8_e4m3" if "FP8" in (scheme, algorithm) else ("nvfp4" if "NVFP4" in (scheme, algorithm) else "auto")


def _algorithm(name: str, group: int, path: str) -> StoredFormat:
    """ModelOpt's names. NVFP4 carries a global weight scale and, with quantised activations, an input scale."""
    formats = {
        "FP8": StoredFormat("fp8", 8, scale_bits=32, group_rows=0, tensor_bytes=4),
        "FP8_PB_WO": StoredFormat("fp8", 8, scale_bits=32, group_rows=128, group_cols=128),
        "FP8_PB_REAL": StoredFormat("fp8", 8, scale_bits=32, group_rows=128, group_cols=128),
        "FP8_PER_CHANNEL_PER_TOKEN": StoredFormat("fp8", 8, scale_bits=32),
        "NVFP4": StoredFormat("nvfp4", 4, scale_bits=8, group_cols=group or 16, tensor_bytes=8),
        "W4A16_NVFP4": StoredFormat("nvfp4", 4, scale_bits=8, group_cols=group or 16, tensor_bytes=4),
        "NVFP4_AWQ": StoredFormat("nvfp4", 4, scale_bits=8, group_cols=group or 16, tensor_bytes=8),
        "MXFP8": WEIGHT_FORMATS["mxfp8"],
        "MXFP4": WEIGHT_FORMATS["mxfp4"],
        "W4A8_MXFP4_FP8": WEIGHT_FORMATS["mxfp4"],
        "W4A16_AWQ": StoredFormat("int4", 4, scale_bits=16, group_cols=group or 128),
        "W4A8_AWQ": StoredFormat("int4", 4, scale_bits=16, group_cols=group or 128, tensor_bytes=8),
        "W8A16": StoredFormat("int8", 8, scale_bits=16),
        "W8A8_SQ_PER_CHANNEL": StoredFormat("int8", 8, scale_bits=32, tensor_bytes=4),
    }
    if name not in formats:
        raise NotCoveredError("cannot interpret this precision", path=path, value=name, way_out=f"known: {', '.join(formats)}")
    return formats[name]


def _listed(q: Keys) -> dict[str, StoredFormat]:
    """``quantized_layers``: a precision for each module; the experts of a layer are told once."""
    listed = q.child("quantized_layers")
    if listed is None:
        return {}
    by_format: dict[tuple[str, int], list[str]] = {}
    for name, value in listed.values.items():
        algorithm, group = (value.get("quant_algo"), value.get("group_size", 0)) if isinstance(value, dict) else (None, 0)
        if not isinstance(algorithm, str) or not isinstance(group, int) or not 0 <= group <= LARGEST:
            raise FileFormatError("expected a precision for each module", path=listed.where(name), value=value, way_out="add quant_algo")
        by_format.setdefault((algorithm, group), []).append(name)
    found: dict[str, StoredFormat] = {}
    for (algorithm, group), names in by_format.items():
        found |= dict.fromkeys(collapse_names(names), _algorithm(algorithm, group, listed.path))
    return found


def _modelopt(q: Keys) -> Scheme:
    algorithm, group = q.text("quant_algo"), q.number("group_size", default=0, least=0)
    explicit, excluded, kv = _listed(q), _excluded(q), _kv_scheme(q)
    if algorithm == "MIXED_PRECISION":
        if not explicit:
            raise FileFormatError("mixed precision without a list of layers", path=q.where("quantized_layers"), way_out="add it")
        return Scheme("modelopt mixed", explicit, None, None, excluded, kv)
    notes = () if excluded.patterns else ("the quantisation lists no excluded modules: every matrix of the layers is taken as quantised",)
    return Scheme(f"modelopt {algorithm}", explicit, _algorithm(algorithm, group, q.where("quant_algo")), None, excluded, kv, notes)
