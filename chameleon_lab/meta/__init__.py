"""Traces of models without a device: ops run on meta tensors, with times from a roofline."""

from .roofline import Roofline
from .trace_meta import trace_meta

__all__ = ["Roofline", "trace_meta"]
