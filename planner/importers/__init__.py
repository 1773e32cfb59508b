"""Importers of foreign result files: ``import_paths`` reads files and folders, one module here per format."""

from planner.importers.collect import import_paths, iterate_import
from planner.importers.stream import Limits

__all__ = ["Limits", "import_paths", "iterate_import"]
