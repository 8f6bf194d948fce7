"""The runtime beside the training: the typed interface of the C++ core, and patches of torch.

Everything in here needs torch. Where it is missing or another one, that is said before anything asks more of it.
"""

from ..util.torch_version import require

require()
