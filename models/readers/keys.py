"""Checked access to a foreign configuration: synonyms, types, ranges; every error names the key.

``Keys`` wraps one JSON object. Nothing is guessed: an absent key is an error unless the caller states the family's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.errors import FileFormatError

LARGEST = 1 << 40  # no dimension of any model comes near; keeps products bounded

SYNONYMS: dict[str, tuple[str, ...]] = {
    "hidden": ("hidden_size", "n_embd", "d_model", "dim"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "n_kv_heads"),
    "head_dim": ("head_dim", "attention_head_dim", "kv_channels"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "context": ("max_position_embeddings", "n_positions", "model_max_length", "max_sequence_length", "seq_length"),
    "window": ("sliding_window", "sliding_window_size"),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts"),
    "top_k": ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "top_k_experts", "moe_top_k"),
    "expert_ffn": ("moe_intermediate_size", "expert_intermediate_size"),
    "shared_experts": ("n_shared_experts", "num_shared_experts"),
    "mtp": ("num_nextn_predict_layers", "mtp_num_hidden_layers"),
    "vt_width": ("vt_hidden_size", "hidden_size"),
    "vt_inner": ("vt_intermediate_size", "intermediate_size"),
    "vt_layers": ("vt_num_hidden_layers", "num_hidden_layers"),
    "vt_rows": ("init_pos_emb_height", "pos_emb_height"),
    "vt_cols": ("init_pos_emb_width", "pos_emb_width"),
    "kda_heads": ("num_heads", "linear_num_heads"),
    "kda_head_dim": ("head_dim", "linear_head_dim"),
    "kda_kernel": ("short_conv_kernel_size", "linear_conv_kernel_dim"),
    "vision_channels": ("in_channels", "in_chans", "num_channels"),
    "mamba_heads": ("mamba_n_heads", "mamba_num_heads"),
    "mamba_head_dim": ("mamba_d_head", "mamba_head_dim"),
    "mamba_groups": ("mamba_n_groups", "n_groups"),
    "mamba_state": ("mamba_d_state", "ssm_state_size"),
    "mamba_kernel": ("mamba_d_conv", "conv_kernel"),
    "dense_first": ("first_k_dense_replace", "moe_layer_start_index"),
}


class Keys:
    """One JSON object of a configuration, with its path for error messages."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        if not isinstance(values, Mapping):
            raise FileFormatError("expected an object", path=path, value=values, way_out="correct the configuration")
        self.values = values
        self.path = path

    def where(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def names(self, name: str) -> tuple[str, ...]:
        return SYNONYMS.get(name, (name,))

    def find(self, name: str) -> tuple[str, Any]:
        """(key as written, value) of the first synonym that is present and not null, else (first synonym, None)."""
        for key in self.names(name):
            value = self.values.get(key)
            if value is not None:
                return key, value
        return self.names(name)[0], None

    def has(self, name: str) -> bool:
        return self.find(name)[1] is not None

    def number(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least ``least``; ``default`` only where the family itself defines one."""
        key, value = self.find(name)
        if value is None:
            if default is None:
                raise FileFormatError(
                    "this key is missing and cannot be derived", path=self.where(key), way_out="add it to the configuration"
                )
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST or int(value) != value:
            raise FileFormatError("expected a whole number", path=self.where(key), value=value, way_out="correct the configuration")
        if value < least:
            raise FileFormatError(f"must be at least {least}", path=self.where(key), value=value, way_out="correct the configuration")
        return int(value)

    def real(self, name: str) -> float:
        key, value = self.find(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
            raise FileFormatError("expected a number", path=self.where(key), value=value, way_out="correct the configuration")
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        key, value = self.find(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise FileFormatError("expected true or false", path=self.where(key), value=value, way_out="correct the configuration")
        return value

    def text(self, name: str, default: str = "") -> str:
        key, value = self.find(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise FileFormatError("expected text", path=self.where(key), value=value, way_out="correct the configuration")
        return value

    def items(self, name: str) -> list[Any] | None:
        key, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise FileFormatError("expected a list", path=self.where(key), value=value, way_out="correct the configuration")
        return value

    def numbers(self, name: str) -> list[int]:
        """A list of small whole numbers (layer indices, kernel sizes); empty where absent."""
        found = self.items(name) or []
        if not all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n <= 1 << 20 for n in found):
            key = self.where(self.find(name)[0])
            raise FileFormatError("expected whole numbers", path=key, value=found, way_out="correct the configuration")
        return found

    def per_layer(self, name: str, layers: int) -> list[Any] | None:
        """A list with one entry a layer; a longer one (MTP layers at its end) is cut, a shorter one contradicts the layer count."""
        found = self.items(name)
        if found is not None and len(found) < layers:
            key = self.where(self.find(name)[0])
            raise FileFormatError(f"{len(found)} entries for {layers} layers", path=key, way_out="list every layer")
        return found[:layers] if found is not None else None

    def child(self, name: str) -> Keys | None:
        key, value = self.find(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise FileFormatError("expected an object", path=self.where(key), value=value, way_out="correct the configuration")
        return Keys(value, self.where(key))

    def require_child(self, name: str) -> Keys:
        found = self.child(name)
        if found is None:
            raise FileFormatError("this object is missing", path=self.where(self.names(name)[0]), way_out="add it to the configuration")
        return found
