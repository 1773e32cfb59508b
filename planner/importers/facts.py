"""Facts about the engine process: the many names that tools, flags and users give to one setting."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from models.catalog.engines import canonical_name
from models.errors import ContradictionError, InputError, UnknownNameError
from planner.importers.common import Draft, text

_NAMES: dict[str, tuple[str, ...]] = {
    "engine": ("engine", "framework"),
    "engine_version": ("engine_version", "version", "vllm_version", "sglang_version"),
    "model": ("model", "model_id", "model_path", "model_name", "served_model_name"),
    "device": ("device", "gpu", "hardware", "hw", "gpu_name", "gpu_type", "accelerator", "device_name", "system"),
    "device_count": ("device_count", "num_gpus", "n_gpus", "gpu_count"),
    "precision": ("precision",),
    "weight_format": ("weight_format", "quantization", "quant"),
    "kv_format": ("kv_format", "kv_cache_dtype", "kv_dtype", "cache_dtype", "kv_cache_dtype_str"),
    "tensor_parallel": ("tensor_parallel", "tp", "tp_size", "tensor_parallel_size"),
    "pipeline_parallel": ("pipeline_parallel", "pp", "pp_size", "pipeline_parallel_size"),
    "data_parallel": ("data_parallel", "dp", "dp_size", "data_parallel_size"),
    "expert_parallel": ("expert_parallel", "ep", "ep_size", "expert_parallel_size"),
    "attention_data_parallel": ("attention_data_parallel", "dp_attention", "enable_dp_attention", "enable_attention_dp"),
    "disaggregated": ("disaggregated", "disagg"),
    "max_num_seqs": ("max_num_seqs", "max_running_requests", "max_batch_size"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens"),
    "max_model_len": ("max_model_len", "context_length", "max_seq_len", "max_sequence_length"),
    "block_size": ("block_size", "page_size", "tokens_per_block"),
    "memory_utilization": ("memory_utilization", "gpu_memory_utilization", "mem_fraction_static", "kv_cache_percentage"),
    "prefix_sharing": ("prefix_sharing", "enable_prefix_caching", "enable_block_reuse"),
    "chunked_prefill": ("chunked_prefill", "enable_chunked_prefill"),
    "cuda_graphs": ("cuda_graphs",),
    "draft": ("draft", "speculative_algorithm", "spec_decoding", "mtp"),
    "draft_tokens": ("draft_tokens", "num_speculative_tokens", "speculative_num_draft_tokens"),
}
_FIELD = {name: target for target, names in _NAMES.items() for name in names}
_NEGATED = {"enforce_eager": "cuda_graphs", "disable_cuda_graph": "cuda_graphs", "disable_radix_cache": "prefix_sharing",
            "no_enable_prefix_caching": "prefix_sharing", "no_enable_chunked_prefill": "chunked_prefill"}  # fmt: skip
_TEXT = {"engine", "engine_version", "model", "device", "precision", "weight_format", "kv_format", "draft"}
_BOOL = {"attention_data_parallel", "disaggregated", "prefix_sharing", "chunked_prefill", "cuda_graphs"}
_LENGTHS = {"prompt_tokens": ("prompt_tokens", "input_len", "isl"), "output_tokens": ("output_tokens", "output_len", "osl"),
            "concurrency": ("concurrency", "batch_size"), "requests": ("requests", "num_prompts")}  # fmt: skip
_LENGTH_FIELD = {name: target for target, names in _LENGTHS.items() for name in names}
_OPTION = {"tensor_parallel": "--tp", "pipeline_parallel": "--pp", "prompt_tokens": "--input-len", "output_tokens": "--output-len",
           "concurrency": "--batch-size"}  # fmt: skip
_TRUE, _FALSE = {"true", "1", "yes", "on"}, {"false", "0", "no", "off", "none"}
_KINDS_OF_DEVICE = {"cuda", "cpu", "gpu", "auto", "rocm", "hip", "xpu", "hpu", "npu", "tpu", "mps"}  # torch's names: no device
_KV = {"bfloat16": "bf16", "float16": "f16", "fp16": "f16", "fp8": "fp8_e4m3"}
_LAUNCH_FLAG = re.compile(r"^--?([a-zA-Z][\w-]*)(?:=(.*))?$", re.DOTALL)
_SHORT = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "dp": "data_parallel", "ep": "expert_parallel", "m": "model"}


def fact_names() -> tuple[str, ...]:
    """The facts that a user may add, by the name of their setup or workload field."""
    return (*_NAMES, *_LENGTHS)


def option_of(name: str) -> str:
    """The option by which a user supplies a fact."""
    return _OPTION.get(name, f"--{name.replace('_', '-')}")


def field_of(name: str) -> str | None:
    """The setup field for a flag or column name, or None."""
    return _FIELD.get(name.strip("-").replace("-", "_").lower())


def is_engine_fact(name: str) -> bool:
    """Whether a server argument has a place in the setup."""
    lowered = name.lower()
    return lowered != "version" and (lowered in _FIELD or lowered in _NEGATED)


def set_fact(draft: Draft, name: str, value: Any) -> bool:
    """Enter a flag under its field where it has one, else among ``flags``; False when it says nothing."""
    key = name.strip("-").replace("-", "_")
    lowered = key.lower()
    if lowered in _NEGATED:
        draft.setup.setdefault(_NEGATED[lowered], not _as_bool(value, key))
        return True
    if lowered in {"speculative_config", "speculative_decoding"}:
        return _speculation(draft, value)
    target = _FIELD.get(lowered)
    if target is None:
        return _flag(draft, key, value)
    if lowered == "mtp" and str(value).lower() in _TRUE:
        value = "mtp"
    converted = _convert(target, value, key)
    if converted is None:
        return False
    draft.setup.setdefault(target, converted)
    return True


def set_known_facts(draft: Draft, facts: Mapping[str, Any]) -> None:
    """Enter those facts that have a field of their own and are still open; anything else says nothing about the engine."""
    for name, value in facts.items():
        if field_of(name) is not None and isinstance(value, str | int | float | bool):
            set_fact(draft, name, value)


def _flag(draft: Draft, key: str, value: Any) -> bool:
    written = text(value if not isinstance(value, dict | list | tuple) else json.dumps(value, default=str))
    if written is None or len(written) > 300:
        return False
    draft.setup.setdefault("flags", {})[key] = written
    return True


def set_facts(draft: Draft, facts: Mapping[str, Any]) -> None:
    """Enter many flags."""
    for name, value in facts.items():
        set_fact(draft, name, value)


def note_facts(draft: Draft, facts: Mapping[str, Any]) -> None:
    """Enter many flags that a log mentions; one that is not understood is a warning, for the rest of the log still holds."""
    for name, value in facts.items():
        try:
            set_fact(draft, name, value)
        except InputError as error:
            draft.warnings.append(f"a flag of the log is not understood: {error}")


def _convert(target: str, value: Any, key: str) -> Any:
    if target in _BOOL:
        return None if value is None else _as_bool(value, key)
    written = text(value)
    if written is None or (target == "kv_format" and written == "auto") or (target == "device" and written.lower() in _KINDS_OF_DEVICE):
        return None
    if target == "kv_format":
        return _KV.get(written.lower().removeprefix("torch."), written.lower().removeprefix("torch."))
    if target in _TEXT:
        return "none" if target == "draft" and written.lower() in {"off", "false"} else written
    return _as_number(target, written, key)


def _as_number(target: str, written: str, key: str) -> float | int | None:
    try:
        number = float(written)
    except ValueError:
        raise InputError("is not a number", path=key, value=written) from None
    if not abs(number) < 2**53:
        raise InputError("is no count", path=key, value=written)
    if target == "memory_utilization":
        return number if 0 < number <= 1 else None
    if number != int(number):
        raise InputError("is not a whole number", path=key, value=written)
    return int(number) if number >= (0 if target == "draft_tokens" else 1) else None


def _as_bool(value: Any, key: str) -> bool:
    written = str(value).strip().lower()
    if written in _TRUE or written == "":
        return True
    if written in _FALSE:
        return False
    raise InputError("is neither true nor false", path=key, value=value)


def _speculation(draft: Draft, value: Any) -> bool:
    """The value of ``--speculative-config``: a mapping, its JSON, or None."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            try:
                value = ast.literal_eval(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                value = None if value == "None" else value
    if not isinstance(value, Mapping):
        return False if value is None else _flag(draft, "speculative_config", value)
    if (method := text(value.get("method"))) is not None:
        draft.setup.setdefault("draft", method)
    if value.get("num_speculative_tokens") is not None:
        draft.setup.setdefault("draft_tokens", _convert("draft_tokens", value["num_speculative_tokens"], "num_speculative_tokens"))
    if (model := text(value.get("model"))) is not None:
        draft.setup.setdefault("flags", {})["draft_model"] = model
    return True


def flags_of_command(words: list[str]) -> dict[str, str]:
    """``['--max-num-seqs=128', '--tp', '2', '--enforce-eager']`` as a mapping; a flag without a value is ``true``."""
    found: dict[str, str] = {}
    for position, word in enumerate(words):
        flag = _LAUNCH_FLAG.match(word)
        if flag is None:
            continue
        name = _SHORT.get(flag.group(1), flag.group(1)).replace("-", "_")
        following = words[position + 1] if position + 1 < len(words) else ""
        bare = "" if following.startswith("-") and not following.lstrip("-").isdigit() else following
        found[name] = flag.group(2) if flag.group(2) is not None else bare or "true"
    return found


def check_known(known: Mapping[str, str]) -> dict[str, str]:
    """The user's facts by field name; an unknown name is an error."""
    found: dict[str, str] = {}
    for name, value in known.items():
        key = name.strip("-").replace("-", "_").lower()
        target = _FIELD.get(key) or _LENGTH_FIELD.get(key)
        if target is None:
            raise UnknownNameError.suggest("fact", name, [*_FIELD, *_LENGTH_FIELD], path=f"--{key.replace('_', '-')}")
        found[target] = value
    return found


def apply_known(draft: Draft, known: Mapping[str, str]) -> None:
    """The user's facts fill gaps and rename model and device; a number that contradicts the file is an error."""
    for target, value in known.items():
        if target in _LENGTHS:
            if draft.workload.get(target) is None:
                number = _convert("max_num_seqs", value, option_of(target))
                draft.workload[target] = number if target in {"concurrency", "requests"} else float(number)
            continue
        wanted = _convert(target, value, option_of(target))
        stated = draft.setup.get(target)
        if target in {"model", "device", "precision", "engine_version"} and stated is not None and stated != wanted:
            draft.metadata[f"{target}_in_file"] = str(stated)
        elif stated is not None and wanted is not None and not _same(target, str(stated), str(wanted)):
            raise ContradictionError(f"the file says {target} {stated}, {option_of(target)} says {wanted}", path=option_of(target))
        if wanted is not None:
            draft.setup[target] = wanted


def _same(target: str, stated: str, wanted: str) -> bool:
    """Whether two words mean the same; engines have several names (``llama.cpp``, ``llama_cpp``)."""
    if target == "engine":
        with suppress(UnknownNameError):
            return canonical_name(stated) == canonical_name(wanted)
    return stated.lower() == wanted.lower()


def missing_facts(draft: Draft) -> tuple[str, ...]:
    """What the run needs and nobody has said."""
    return tuple(name for name in draft.needs if draft.setup.get(name) is None and draft.workload.get(name) is None)
