"""Policy files of a job: whichever rank has saved one, it serves every rank that runs its program."""

from __future__ import annotations

import errno
import os

from ..errors import PolicyError
from ..policy import Policy
from .file_names import found_by_any
from .identity import Identity


def find_policies(path: str | os.PathLike[str], who: Identity) -> list[tuple[str, Policy]]:
    """The policies that a name stands for, with the names of their files; see :func:`.file_names.found_by_any`.

    In a folder or under a pattern other files are passed over. Raises OSError where nothing is there, PolicyError where
    a file holds none, or none of several does.
    """
    names = found_by_any(path, who)
    if not names:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
    found, wrong = [], None
    for name in names:
        try:
            found.append((name, Policy.load(name)))
        except PolicyError as error:
            wrong = wrong or error
    if not found:
        assert wrong is not None
        if len(names) == 1:
            raise wrong
        raise PolicyError(f"{os.fspath(path)}: none of {len(names)} files holds a policy: {wrong}")
    return found
