"""Machine code of kernels: built by numba once, kept on disk, loaded by llvmlite alone.

Importing numba and setting it up takes a second, so a process that finds its code on disk never does. A file holds one kernel
for one list of argument types and one processor: the SHA-256 of the object code, then the code. Its name tells the sources that
the kernel is built from apart. Whatever is missing or damaged is built again.
The code takes a table of 64-bit words: for each array its address and shape, for each number its bits.
Indices are never negative in kernels, so the code does not look whether one counts from the end: a tenth of all instructions.
"""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

OPTIONS = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
NAME = "kernel"
IMPORTS = re.compile(r"^\s*from models\.kernels[\w\s.,(]*", re.MULTILINE)  # parsing in full takes 80 ms
EXTERNAL = {"pow", "memcpy", "memmove", "memset"}  # of the C library; anything else would be Python's or numba's
NO_VALUE = -2  # numba's status of a function that returned None


@dataclass(frozen=True)
class Constant:
    """An argument whose value the code is built for: what it makes unreachable is left out."""

    value: float


class Piece:
    """A function that numba compiles where a kernel calls it."""

    def __init__(self, function: Callable[..., object], *, inline: bool) -> None:
        self.py_func, self._inline = function, inline
        self._dispatcher: Any = None

    @property
    def _numba_type_(self) -> Any:  # numba asks this of every global that compiled code names
        if self._dispatcher is None:
            self._dispatcher = _numba("").njit(forceinline=self._inline, **OPTIONS)(self.py_func)
        return self._dispatcher._numba_type_


def load(function: Callable[..., object], types: str, arguments: tuple[object, ...]) -> Callable[[int], None]:
    """The code of ``function`` for arguments of these types, from disk or newly built; it takes the address of the table."""
    module = function.__module__.rsplit(".", 1)[-1]
    stem = f"{module}.{function.__name__}-"
    name = f"{stem}{_sources(module)}-{hashlib.sha256(f'{types}{_platform()}'.encode()).hexdigest()[:16]}.o"
    code = next((found for folder in _folders() if (found := _read(folder / name))), None)
    if code is None:
        code = _build(function, arguments)
        _store(stem, name, code)
    return _link(code)


@cache
def _sources(module: str) -> str:
    """Digest of what a kernel of this module is built from: the module's source and those of all that it imports from this folder."""
    folder, texts, wanted = Path(__file__).parent, dict[str, str](), {module}
    here = {file.stem for file in folder.glob("*.py")}
    while wanted:
        name = wanted.pop()
        texts[name] = (folder / f"{name}.py").read_text(encoding="utf-8")
        named = re.findall(r"\w+", " ".join(IMPORTS.findall(texts[name])))
        wanted |= here.intersection(named) - texts.keys()
    return hashlib.sha256(repr(sorted(texts.items())).encode()).hexdigest()[:16]


@cache
def _platform() -> str:
    """Processor and compiler that the code is for."""
    llvm = _llvm()
    return f"{llvm.get_host_cpu_name()} {llvm.get_host_cpu_features().flatten()} {version('numba')} {version('llvmlite')}"


@cache
def _llvm() -> Any:
    from llvmlite import binding  # noqa: PLC0415  loads LLVM: only where something is simulated

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _machine() -> Any:
    llvm = _llvm()
    target, features = llvm.Target.from_default_triple(), llvm.get_host_cpu_features().flatten()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="static", codemodel="jitdefault", jit=True
    )


def _folders() -> Iterator[Path]:
    """Where code is kept: as told, beside the sources, or, where those are not writable, in the user's cache."""
    if told := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(told)
    else:
        yield Path(__file__).parent / "__pycache__"
        yield Path.home() / ".cache" / "goodput-planner"


def _read(file: Path) -> bytes | None:
    try:
        content = file.read_bytes()
    except OSError:
        return None
    return content[32:] if hashlib.sha256(content[32:]).digest() == content[:32] else None


def _store(stem: str, name: str, code: bytes) -> None:
    """Keep the code in the first folder that takes it, in one step, and drop what older sources left there."""
    for folder in _folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f"{name}.{os.getpid()}"
            draft.write_bytes(hashlib.sha256(code).digest() + code)
            draft.replace(folder / name)
            for old in folder.glob(f"{stem}*.o"):
                if not old.name.startswith(name.rpartition("-")[0]):
                    old.unlink(missing_ok=True)
        except OSError:
            continue
        return


def _numba(module: str) -> Any:
    return import_module(f"numba{module}")


def _build(function: Callable[..., object], arguments: tuple[object, ...]) -> bytes:
    """Compile with numba, an unpacker of the table before it, to relocatable object code."""
    njit, voidptr = _numba("").njit, _numba(".core.types").voidptr
    kernel, unpack = njit(forceinline=True, **OPTIONS)(function), _unpacker(arguments)

    def entry(table: Any) -> None:
        kernel(*unpack(table))

    dispatcher = njit(**OPTIONS)(entry)
    with _plain_indices():
        dispatcher.compile((voidptr,))
    (result,) = dispatcher.overloads.values()
    module = _llvm().parse_assembly(result.library.get_llvm_str())
    module.get_function(result.fndesc.mangled_name).name = NAME
    outside = {one.name for one in module.functions if one.is_declaration and not one.name.startswith("llvm.")}
    if not outside <= EXTERNAL:
        raise RuntimeError(f"compiled code of {function.__name__} calls {sorted(outside - EXTERNAL)}, which a later process would not find")
    code: bytes = _machine().emit_object(module)
    return code


@contextmanager
def _plain_indices() -> Iterator[None]:
    """Have numba take indices as they are while it compiles for us; its lock keeps everybody else's compilation out."""
    arrays, types = _numba(".np.arrayobj"), _numba(".core.types")
    with _numba(".core.compiler_lock").global_compiler_lock:
        careful = arrays.fix_integer_index
        arrays.fix_integer_index = lambda context, builder, kind, index, _: context.cast(builder, index, kind, types.intp)
        try:
            yield
        finally:
            arrays.fix_integer_index = careful


def _type(argument: Any) -> Any:
    types = _numba(".core.types")
    if isinstance(argument, Constant):
        return _type(argument.value)
    if isinstance(argument, np.ndarray):
        return types.Array(_numba("").from_dtype(argument.dtype), argument.ndim, "C")
    if isinstance(argument, tuple):
        return types.NamedTuple([_type(field) for field in argument], type(argument))
    return types.float64 if isinstance(argument, float) else types.int64


def _unpacker(arguments: tuple[Any, ...]) -> Any:
    """Arguments like these from the table of words, in compiled code; constants stand in the code."""
    types, arrays = _numba(".core.types"), _numba(".np.arrayobj")

    def generate(context: Any, builder: Any, signature: Any, table: Any) -> Any:
        integer = context.get_value_type(types.int64)
        words, place = builder.bitcast(table[0], integer.as_pointer()), itertools.count()

        def word() -> Any:
            return builder.load(builder.gep(words, [integer(next(place))]))

        def value(kind: Any, like: Any) -> Any:
            if isinstance(like, Constant):
                return context.get_constant(kind, like.value)
            if isinstance(like, tuple):
                return context.make_tuple(builder, kind, [value(*one) for one in zip(kind.types, like, strict=True)])
            if not isinstance(kind, types.Array):
                return builder.bitcast(word(), context.get_value_type(kind))
            array = arrays.make_array(kind)(context, builder)
            data, shape = builder.inttoptr(word(), array.data.type), [word() for _ in range(kind.ndim)]
            item = integer(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
            strides = [item]
            for length in shape[:0:-1]:
                strides.insert(0, builder.mul(strides[0], length))
            arrays.populate_array(array, data, shape, strides, item, None)
            return array._getvalue()  # noqa: SLF001  the struct as a value: numba's own way of returning it

        return value(signature.return_type, arguments)

    def unpack(typing: Any, table: Any) -> Any:  # noqa: ARG001  numba fixes the parameters
        return types.Tuple([_type(one) for one in arguments])(types.voidptr), generate

    return _numba(".extending").intrinsic(unpack)


_ENGINES: list[Any] = []  # own the code that they loaded


def _link(code: bytes) -> Callable[[int], None]:
    llvm = _llvm()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    pointer = ctypes.c_void_p
    call = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, pointer)(engine.get_function_address(NAME))

    def run(table: int) -> None:
        value, error = pointer(), pointer()
        status = call(ctypes.addressof(value), ctypes.addressof(error), table)
        if status not in (0, NO_VALUE):
            raise RuntimeError(f"compiled code failed with status {status}")

    return run
