"""The session: the one public way to run a training loop under Chameleon Lab."""

from .session import Session, current_session

__all__ = ["Session", "current_session"]
