"""Readers of foreign model files; ``load_architecture`` is the only door."""

from models.readers.load import load_architecture

__all__ = ["load_architecture"]
