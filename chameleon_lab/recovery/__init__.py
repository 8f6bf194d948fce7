"""What to do when a rank dies: the outlook of each way to go on, from recorded steps. Calculations; nothing runs."""

from .outlook import Costs, Outlook, RecoveryPolicy, Way
from .what_if import what_if

__all__ = ["Costs", "Outlook", "RecoveryPolicy", "Way", "what_if"]
