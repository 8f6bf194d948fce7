"""What runs beside the training: the typed face of the C++ core, and what torch is asked and told.

Everything in here needs torch. Where it is missing or another one, that is said before anything asks more of it.
"""

from ..torch_version import require

require()
