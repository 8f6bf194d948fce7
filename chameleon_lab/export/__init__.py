"""Traces in the formats of other tools: which format a path names, and the file that is written."""

from .formats import FORMATS, export, format_of

__all__ = ["FORMATS", "export", "format_of"]
