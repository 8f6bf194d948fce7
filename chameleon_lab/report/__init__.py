"""Reports of sessions and traces: figures as attributes, as tables in a terminal and in a notebook."""

from .session_report import PlanSummary, Report, StepSummary
from .trace_report import RecordedStep, TraceReport

__all__ = ["PlanSummary", "RecordedStep", "Report", "StepSummary", "TraceReport"]
