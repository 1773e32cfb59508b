"""A door to llama.cpp's own ``llama_decode`` inside the package ``xllamacpp``, for steps of any make-up; runs in the engine's environment.

The package exports the C interface (``llama.h``) but wraps only its server. The two parameter structures below are those of build 11549;
``Engine`` checks what the context reports against what was asked for, so that another build's layout is an error, not a wrong measurement.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import xllamacpp

I32, U32, F32, POINTER, BOOL = ctypes.c_int32, ctypes.c_uint32, ctypes.c_float, ctypes.c_void_p, ctypes.c_bool
KV_TYPES = {"f16": 1, "q4_0": 2, "q8_0": 8}  # enum ggml_type
FLASH_ATTENTION_ON = 1


class ModelParams(ctypes.Structure):
    """``struct llama_model_params``."""

    _fields_ = (
        ("devices", POINTER), ("tensor_buft_overrides", POINTER), ("n_gpu_layers", I32), ("split_mode", I32), ("load_mode", I32),
        ("lazy_mode", I32), ("main_gpu", I32), ("tensor_split", POINTER), ("progress_callback", POINTER),
        ("progress_callback_user_data", POINTER), ("kv_overrides", POINTER), ("vocab_only", BOOL), ("check_tensors", BOOL),
        ("use_extra_bufts", BOOL), ("no_host", BOOL), ("no_alloc", BOOL), ("load_mtp", BOOL),
    )  # fmt: skip


class ContextParams(ctypes.Structure):
    """``struct llama_context_params``."""

    _fields_ = (
        ("n_ctx", U32), ("n_batch", U32), ("n_ubatch", U32), ("n_seq_max", U32), ("n_rs_seq", U32), ("n_outputs_max", U32),
        ("n_outputs_max_per_seq", U32), ("n_threads", I32), ("n_threads_batch", I32), ("ctx_type", I32), ("rope_scaling_type", I32),
        ("pooling_type", I32), ("attention_type", I32), ("flash_attn_type", I32), ("rope_freq_base", F32), ("rope_freq_scale", F32),
        ("yarn_ext_factor", F32), ("yarn_attn_factor", F32), ("yarn_beta_fast", F32), ("yarn_beta_slow", F32), ("yarn_orig_ctx", U32),
        ("defrag_thold", F32), ("cb_eval", POINTER), ("cb_eval_user_data", POINTER), ("type_k", I32), ("type_v", I32),
        ("moe_cache_size", ctypes.c_size_t), ("abort_callback", POINTER), ("abort_callback_data", POINTER), ("embeddings", BOOL),
        ("offload_kqv", BOOL), ("no_perf", BOOL), ("op_offload", BOOL), ("swa_full", BOOL), ("kv_unified", BOOL), ("samplers", POINTER),
        ("n_samplers", ctypes.c_size_t), ("ctx_other", POINTER),
    )  # fmt: skip


class Batch(ctypes.Structure):
    """``struct llama_batch``: token, position, sequence and whether logits are wanted, for each row."""

    _fields_ = (
        ("n_tokens", I32), ("token", ctypes.POINTER(I32)), ("embd", POINTER), ("pos", ctypes.POINTER(I32)),
        ("n_seq_id", ctypes.POINTER(I32)), ("seq_id", ctypes.POINTER(ctypes.POINTER(I32))), ("logits", ctypes.POINTER(ctypes.c_int8)),
    )  # fmt: skip


def _library() -> ctypes.CDLL:
    (path,) = Path(xllamacpp.__file__).parent.glob("xllamacpp*.so")
    found = ctypes.CDLL(str(path))
    signatures = {
        "llama_model_default_params": (ModelParams,), "llama_context_default_params": (ContextParams,),
        "llama_model_load_from_file": (POINTER, ctypes.c_char_p, ModelParams), "llama_init_from_model": (POINTER, POINTER, ContextParams),
        "llama_get_memory": (POINTER, POINTER), "llama_memory_clear": (None, POINTER, BOOL),
        "llama_memory_seq_rm": (BOOL, POINTER, I32, I32, I32), "llama_memory_seq_cp": (None, POINTER, I32, I32, I32, I32),
        "llama_decode": (I32, POINTER, Batch), "llama_synchronize": (None, POINTER),
        "llama_batch_init": (Batch, I32, I32, I32), "llama_free": (None, POINTER), "llama_model_free": (None, POINTER),
        "llama_n_ctx": (U32, POINTER), "llama_n_batch": (U32, POINTER), "llama_n_ubatch": (U32, POINTER), "llama_n_seq_max": (U32, POINTER),
        "llama_n_threads": (I32, POINTER), "llama_log_set": (None, POINTER, POINTER), "llama_batch_free": (None, Batch),
    }  # fmt: skip
    for name, (result, *arguments) in signatures.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


_SILENT = ctypes.CFUNCTYPE(None, I32, ctypes.c_char_p, POINTER)(lambda _level, _text, _data: None)


class Engine:
    """One context of one engine thread: ``sequences`` streams of ``context`` tokens each. ``decode`` times single steps."""

    def __init__(self, model: Path, *, context: int, sequences: int, step_tokens: int, kv_type: str, vocabulary: int) -> None:
        self.c = _library()
        self.c.llama_log_set(ctypes.cast(_SILENT, POINTER), None)
        m = self.c.llama_model_default_params()
        m.use_extra_bufts = False  # no weight repacking
        self.model = self.c.llama_model_load_from_file(str(model).encode(), m)
        p = self.c.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.n_seq_max = context * sequences, step_tokens, step_tokens, sequences
        p.n_threads = p.n_threads_batch = 1
        p.flash_attn_type, p.type_k, p.type_v, p.kv_unified = FLASH_ATTENTION_ON, KV_TYPES[kv_type], KV_TYPES[kv_type], False
        self.context = self.c.llama_init_from_model(self.model, p)
        asked = (context * sequences, step_tokens, step_tokens, sequences, 1)
        got = tuple(int(getattr(self.c, f"llama_{n}")(self.context)) for n in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads"))
        if got != asked:
            raise RuntimeError(f"the context reports {got}, {asked} was asked for: this build lays its parameters out otherwise")
        self.memory = self.c.llama_get_memory(self.context)
        self.rows = self.c.llama_batch_init(step_tokens, 0, 1)
        self.tokens = np.random.default_rng(7).integers(300, vocabulary, size=1 << 16).astype(np.int32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.c.llama_batch_free(self.rows)
        self.c.llama_free(self.context)
        self.c.llama_model_free(self.model)

    def decode(self, parts: Sequence[tuple[int, int, int]], *, logits: str = "last") -> tuple[float, float]:
        """(wall, CPU) seconds of a step of (sequence, new, before) parts. ``logits``: of the ``last`` row of each, ``all`` or none."""
        row = 0
        for sequence, new, before in parts:
            for offset in range(new):
                self.rows.token[row] = int(self.tokens[(sequence * 4099 + before + offset) % len(self.tokens)])
                self.rows.pos[row] = before + offset
                self.rows.n_seq_id[row] = 1
                self.rows.seq_id[row][0] = sequence
                self.rows.logits[row] = logits == "all" or (logits == "last" and offset == new - 1)
                row += 1
        self.rows.n_tokens = row
        wall, cpu = time.perf_counter(), time.thread_time()
        status = self.c.llama_decode(self.context, self.rows)
        self.c.llama_synchronize(self.context)
        wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
        if status != 0:
            raise RuntimeError(f"llama_decode answered {status} to {parts}")
        return wall, cpu

    def fill(self, sequence: int, tokens: int) -> None:
        """Bring a sequence to exactly ``tokens`` cached tokens, without logits."""
        self.c.llama_memory_seq_rm(self.memory, sequence, 0, -1)
        step = self.c.llama_n_batch(self.context)
        for before in range(0, tokens, step):
            self.decode([(sequence, min(step, tokens - before), before)], logits="none")

    def copy(self, source: int, sequence: int, tokens: int) -> None:
        """Let a sequence be the first ``tokens`` cached tokens of ``source``; the copy is made by the next ``decode``."""
        self.c.llama_memory_seq_rm(self.memory, sequence, 0, -1)
        self.c.llama_memory_seq_cp(self.memory, source, sequence, -1, -1)
        self.forget(sequence, tokens)

    def forget(self, sequence: int, tokens: int) -> None:
        """Drop what lies beyond ``tokens`` cached tokens of a sequence."""
        self.c.llama_memory_seq_rm(self.memory, sequence, tokens, -1)
