"""What an architecture weighs, caches and computes: pure functions of ``models.describe.architecture.Architecture``."""

from models.facts.flops import (
    attention_pairs,
    flops_per_index_pair,
    flops_per_limited_pair,
    flops_per_logit_row,
    flops_per_pair,
    flops_per_token,
    prefill_flops,
)
from models.facts.formats import KV_FORMATS, WEIGHT_FORMATS, KvFormat, kv_format, weight_format
from models.facts.kv import (
    WindowedKv,
    indexer_bytes_per_token,
    kv_bytes,
    kv_bytes_per_token,
    kv_bytes_per_token_below_window,
    layer_kv_bytes,
    state_bytes_per_sequence,
    windowed_kv,
)
from models.facts.weights import (
    Parameters,
    WeightRead,
    check_tensor_parallel,
    checkpoint_bytes,
    ffn_bytes_per_layer,
    layer_bytes,
    linear_parameters,
    parameters,
    weight_bytes,
    weight_bytes_by_precision,
    weight_bytes_of,
    weight_read,
)

__all__ = [
    "KV_FORMATS", "WEIGHT_FORMATS", "KvFormat", "Parameters", "WeightRead", "WindowedKv", "attention_pairs", "check_tensor_parallel",
    "checkpoint_bytes", "ffn_bytes_per_layer", "flops_per_index_pair", "flops_per_limited_pair", "flops_per_logit_row", "flops_per_pair",
    "flops_per_token", "indexer_bytes_per_token", "kv_bytes", "kv_bytes_per_token", "kv_bytes_per_token_below_window", "kv_format",
    "layer_bytes", "layer_kv_bytes", "linear_parameters", "parameters", "prefill_flops", "state_bytes_per_sequence", "weight_bytes",
    "weight_bytes_by_precision", "weight_bytes_of", "weight_format", "weight_read", "windowed_kv",
]  # fmt: skip
