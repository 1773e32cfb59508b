"""Module names and the patterns that exclude them: exact, prefix, glob, ``re:``, or one bare word of the dotted name.

Names are compared below the wrapper: ``model.language_model.layers.3.mlp`` is ``layers.3.mlp``. Vision modules never meet text layers.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from models.errors import FileFormatError

_EXPERT = re.compile(r"\.experts\.\d+\.")
_PREFIX = re.compile(r"^(?!.*(?:vision|visual|vit\.|audio|mtp)).*?\b(?=layers\.)", re.MULTILINE)
_TOWER = re.compile(r"vision|visual|vit\.|audio|projector|mm_")
_LAYER = re.compile(r"layers\.(\d+)\.")
_WRAPPERS = ("model.", "language_model.model.", "model.language_model.", "")
T = TypeVar("T")


def collapse_names(names: Iterable[str]) -> set[str]:
    """Names below the wrapper, the experts of a layer told once (``experts.*.``)."""
    text = _EXPERT.sub(".experts.*.", "\n".join(names))
    return set(_PREFIX.sub("", text).split("\n"))


def module_names(targets: Iterable[object]) -> set[str]:
    """Target names of a configuration group; patterns are kept as they are."""
    return collapse_names(str(target) for target in targets)


def find_module(module: str, formats: Mapping[str, T]) -> T | None:
    """The entry of the module or of the nearest module above it."""
    if not formats:
        return None
    name = module
    while name:
        if name in formats:
            return formats[name]
        name = name.rpartition(".")[0]
    return None


@dataclass(frozen=True, slots=True)
class Excluded:
    """Compiled exclusion patterns. ``prefixes`` by layer index keep a test at a handful of comparisons."""

    patterns: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    exact: frozenset[str] = frozenset()
    prefixes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    others: tuple[re.Pattern[str], ...] = ()
    regexes: tuple[re.Pattern[str], ...] = ()

    @property
    def by_layer(self) -> bool:
        return any(_LAYER.search(p) or re.search(r"layers\.\d", p) for p in self.patterns) or bool(self.regexes)

    @classmethod
    def from_patterns(cls, patterns: Iterable[str]) -> Excluded:
        kept = tuple(patterns)
        words: set[str] = set()
        exact: set[str] = set()
        prefixes: dict[str, list[str]] = {}
        others, regexes = [], []
        for pattern in collapse_names(p for p in kept if not p.startswith("re:")) if kept else ():
            if "*" not in pattern and "?" not in pattern:
                (exact if "." in pattern else words).add(pattern)
                if "layers." not in pattern and not _TOWER.search(pattern):
                    words.add(pattern.rpartition(".")[2])  # language_model.lm_head
            elif pattern.endswith("*") and not set("*?[") & set(pattern[:-1]):
                index = _LAYER.search(pattern)
                prefixes.setdefault(index.group(1) if index else "", []).append(pattern[:-1])
            else:
                others += [re.compile(fnmatch.translate(pattern)), re.compile(fnmatch.translate(pattern + ".*"))]
        for pattern in kept:
            if pattern.startswith("re:"):
                try:
                    regexes.append(re.compile(pattern[3:]))
                except re.error as cause:
                    raise FileFormatError("not a regular expression", path="ignore", value=pattern, way_out="correct it") from cause
        by_index = {index: tuple(found) for index, found in prefixes.items()}
        return cls(kept, frozenset(words), frozenset(exact), by_index, tuple(others), tuple(regexes))

    def matches(self, module: str) -> bool:
        """Is ``module`` (below the wrapper) excluded."""
        if not self.patterns:
            return False
        if not self.words.isdisjoint(module.split(".")) or (self.exact and self._exact(module)):
            return True
        index = _LAYER.match(module)
        bucket = self.prefixes.get(index.group(1) if index else "", ()) + self.prefixes.get("", ())
        if module.startswith(bucket) or any(other.match(module) for other in self.others):
            return True
        return any(regex.match(wrapper + module) for regex in self.regexes for wrapper in _WRAPPERS)

    def _exact(self, module: str) -> bool:
        name = module
        while name:
            if name in self.exact:
                return True
            name = name.rpartition(".")[0]
        return False
