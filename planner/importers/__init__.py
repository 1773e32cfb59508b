"""Importers of foreign result files: ``import_paths`` reads files and folders, one module here per format."""

from planner.importers.collect import Asks, import_paths, iterate_import
from planner.importers.csv_table import parse_columns
from planner.importers.facts import fact_names, option_of
from planner.importers.stream import Limits

__all__ = ["Asks", "Limits", "fact_names", "import_paths", "iterate_import", "option_of", "parse_columns"]
