"""The errors of Chameleon Lab. Each message names the thing, the value and the remedy."""

from __future__ import annotations

from .util.torch_version import note_broken

try:
    from torch import OutOfMemoryError
except Exception as error:  # as where only files are looked at: nothing is caught by that name either
    note_broken(error)

    class OutOfMemoryError(RuntimeError):  # type: ignore[no-redef]  # where torch is not
        """Stands for torch's."""


class ChameleonError(RuntimeError):
    """Base of the errors that are Chameleon Lab's own."""


class SessionError(ChameleonError):
    """A session was used in a way it cannot serve: a second one on a device, one that is closed, and so on."""


class PolicyError(ChameleonError, ValueError):
    """A policy file or a policy that cannot be used: truncated, of another version, or contradictory."""


class TraceError(ChameleonError, ValueError):
    """A trace file that cannot be read: truncated, of another version, or no trace at all."""


class CutFileError(TraceError):
    """A trace file that ends before its end: cut while it was copied or written."""


class BelowFloorError(OutOfMemoryError):
    """The capacity is below what a single op needs at once, so that no policy can run the step in it.

    Args:
        message: what is wrong, and the way out.
        capacity_bytes: what there was.
        needed_bytes: what was needed at once.
        op_name: the op that needed it.

    They are attributes too; None where that is not known. While a session is open, an op that runs out of memory below
    the floor raises this error, too; inside TorchScript it is a RuntimeError with the same message.
    """

    capacity_bytes: int | None
    needed_bytes: int | None
    op_name: str | None

    def __init__(
        self,
        message: str = "",
        *,
        capacity_bytes: int | None = None,
        needed_bytes: int | None = None,
        op_name: str | None = None,
    ) -> None:
        super().__init__(message)
        figures = {"capacity_bytes": capacity_bytes, "needed_bytes": needed_bytes, "op_name": op_name}
        # One that torch makes has its figures already: see runtime/patches/error_words.py.
        vars(self).update({name: value for name, value in figures.items() if name not in vars(self)})
