"""Writes the facts of ``tests/data/launch``: which arguments a released engine accepts, read from the package without running it.

    python tests/tools/extract_flags.py vllm vllm-0.33.0-….whl > tests/data/launch/vllm-0.33.0.json
    python tests/tools/extract_flags.py vllm_bench vllm-0.33.0-….whl > tests/data/launch/bench/vllm-0.33.0.json
    python tests/tools/extract_flags.py sglang sglang-0.5.23-….whl
    python tests/tools/extract_flags.py llama_cpp xllamacpp-….whl [arg.cpp]

The wheel of xllamacpp holds llama.cpp's argument parser compiled: its option names are strings of the library. ``arg.cpp``, where given
(the sdist of llama-cpp-python has one), says which of them were removed.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from pathlib import Path


def literals(source: str) -> dict[str, list[str]]:
    """Every module-level ``Name = Literal[...]`` or list of strings, names inside resolved."""
    found: dict[str, list[str]] = {}
    for node in ast.parse(source).body:
        target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0] if isinstance(node, ast.Assign) else None
        value = getattr(node, "value", None)
        if not isinstance(target, ast.Name) or value is None:
            continue
        values: list[str] = []
        for part in ast.walk(value):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                values.append(part.value)
            elif isinstance(part, ast.Name) and part.id in found:
                values += found[part.id]
        if values:
            found[target.id] = values
    return found


def add_argument_calls(source: str) -> dict[str, list[str]]:
    """Option names of every ``add_argument``, with the choices that are written as a list."""
    named = literals(source)
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"):
            continue
        names = [a.value for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("-")]
        values = next((choice_list(k.value, named) for k in node.keywords if k.arg == "choices"), [])
        found |= dict.fromkeys(names, values)
    return found


def choice_list(node: ast.expr, named: dict[str, list[str]]) -> list[str]:
    if isinstance(node, ast.Name):
        return named.get(node.id, [])
    return [c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]


def class_fields(source: str, name: str) -> dict[str, str]:
    """Annotated fields of a class and their annotations as text."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                a.target.id: ast.unparse(a.annotation) for a in node.body if isinstance(a, ast.AnnAssign) and isinstance(a.target, ast.Name)
            }
    return {}


def vllm(wheel: zipfile.ZipFile) -> dict[str, object]:
    def read(path: str) -> str:
        return wheel.read(f"vllm/{path}").decode()

    source = read("engine/arg_utils.py")
    flags = set(add_argument_calls(source))
    fields = class_fields(source, "EngineArgs")
    flags |= {f"--no-{n.replace('_', '-')}" for n, t in fields.items() if "bool" in t and f"--{n.replace('_', '-')}" in flags}
    speculative = read("config/speculative.py")
    choices = {
        "--kv-cache-dtype": literals(read("config/cache.py"))["CacheDType"],
        "--quantization": literals(read("model_executor/layers/quantization/__init__.py"))["QuantizationMethods"],
        "--dtype": literals(read("config/model.py"))["ModelDType"],
        "speculative method": literals(speculative)["SpeculativeMethod"],
    }
    offload = "config/offload.py"
    if f"vllm/{offload}" in wheel.namelist():
        choices["--offload-backend"] = literals(read(offload))["OffloadBackend"]
    return {"flags": sorted(flags), "choices": choices, "speculative_keys": sorted(class_fields(speculative, "SpeculativeConfig"))}


def vllm_bench(wheel: zipfile.ZipFile) -> dict[str, object]:
    """``vllm bench serve``: its own options and those of its data sets."""
    found: dict[str, list[str]] = {}
    for path in ("serve.py", "datasets/datasets.py"):
        found |= add_argument_calls(wheel.read(f"vllm/benchmarks/{path}").decode())
    requests = ast.parse(wheel.read("vllm/benchmarks/lib/endpoint_request_func.py").decode())
    backends = next(n for n in requests.body if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "ASYNC_REQUEST_FUNCS")
    assert isinstance(backends.value, ast.Dict)
    names = [k.value for k in backends.value.keys if isinstance(k, ast.Constant)]
    return {"flags": sorted(found), "choices": {"--dataset-name": found["--dataset-name"], "--backend": names}}


def sglang(wheel: zipfile.ZipFile) -> dict[str, object]:
    found = add_argument_calls(wheel.read("sglang/srt/server_args.py").decode())
    groups = "sglang/srt/arg_groups/"
    named = literals(wheel.read(groups + "choices.py").decode()) if groups + "choices.py" in wheel.namelist() else {}
    for path in (n for n in wheel.namelist() if n.startswith(groups + "fields/") and n.endswith(".py")):
        for node in ast.walk(ast.parse(wheel.read(path).decode())):
            if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript) and ast.unparse(node.annotation.value) == "A":
                found |= sglang_field(node, named)
    return {"flags": sorted(found), "choices": {name: values for name, values in sorted(found.items()) if values}}


def sglang_field(node: ast.AnnAssign, named: dict[str, list[str]]) -> dict[str, list[str]]:
    call = next((c for c in ast.walk(node.annotation) if isinstance(c, ast.Call) and ast.unparse(c.func) == "Arg"), None)
    words = {k.arg: k.value for k in call.keywords} if call else {}
    if "no_cli" in words:
        return {}
    values = choice_list(words["choices"], named) if "choices" in words else []
    names = ["--" + ast.unparse(node.target).replace("_", "-"), *(choice_list(words["aliases"], {}) if "aliases" in words else [])]
    return dict.fromkeys(names, values)


def llama_cpp(wheel: zipfile.ZipFile, arg_cpp: Path | None) -> dict[str, object]:
    library = wheel.read("xllamacpp/xllamacpp.abi3.so")
    text = {m.group().decode() for m in re.finditer(rb"(?<=\0)[ -~]{3,60}(?=\0)", library)}
    flags = {t for t in text if re.fullmatch(r"--[a-z][a-z0-9-]*", t)}
    if arg_cpp is not None:
        blocks = arg_cpp.read_text(encoding="utf-8").split("add_opt(")[1:]
        options = {o for b in blocks if "arg_removed(" not in b for o in re.findall(r'"(--[a-z][a-z0-9-]*)"', b.split(",\n")[0])}
        negated = {o for b in blocks for o in re.findall(r'"(--no-[a-z0-9-]*)"', b)}
        flags &= options | negated
    spec = sorted(t for t in text if re.fullmatch(r"(draft|ngram)-[a-z0-9-]+", t))
    return {"flags": sorted(flags), "choices": {"--spec-type": spec}}


def main() -> None:
    engine, package, *rest = sys.argv[1:]
    with zipfile.ZipFile(package) as wheel:
        if engine == "llama_cpp":
            facts = llama_cpp(wheel, Path(rest[0]) if rest else None)
        else:
            facts = {"vllm": vllm, "vllm_bench": vllm_bench, "sglang": sglang}[engine](wheel)
    print(json.dumps({"package": Path(package).name, **facts}, indent=1))  # noqa: T201


if __name__ == "__main__":
    main()
