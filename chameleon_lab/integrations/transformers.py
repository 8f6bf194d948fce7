"""Hugging Face Trainer: ``Trainer(..., callbacks=[ChameleonCallback("8GiB")])``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from .keeper import SessionKeeper

try:
    import accelerate  # noqa: F401 - the Trainer needs it, and says so only when it is used
    from transformers import Trainer, TrainerCallback, TrainerControl
except ImportError as error:
    raise ImportError(
        f"chameleon_lab.integrations.transformers needs the Hugging Face Trainer, which does not load ({error}): "
        "install it with `pip install 'transformers[torch]'`"
    ) from error


class ChameleonCallback(SessionKeeper, TrainerCallback):
    """Runs each ``trainer.train()`` in a session of its own.

    A step ends with each optimizer step, however many micro-batches it has. An evaluation belongs to the step that
    follows it.

    The arguments are those of :class:`~chameleon_lab.integrations.keeper.SessionKeeper`. With ``log=True`` the
    Trainer logs the session's figures whenever it logs the loss.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trainer: Callable[[], Trainer | None] = lambda: None

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Open a session."""
        self._open()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Log, if asked to. The session's step has ended with the optimizer's."""
        trainer = self._trainer()
        if self.log_metrics and control.should_log and trainer is not None:
            trainer.log(self.metrics())
            control.should_log = True  # logging clears it, and the loss is still to come

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """End the session."""
        self.close()


def _closing_sessions(train: Callable[..., Any]) -> Callable[..., Any]:
    """The Trainer tells callbacks of no exception: its ``train`` ends their sessions itself."""

    @functools.wraps(train)
    def train_and_close(trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
        callbacks = [c for c in trainer.callback_handler.callbacks if isinstance(c, ChameleonCallback)]
        for callback in callbacks:
            callback._trainer = weakref.ref(trainer)
        try:
            return train(trainer, *args, **kwargs)
        except BaseException as error:
            for callback in callbacks:
                callback.close(error)
            raise

    return train_and_close


Trainer.train = _closing_sessions(Trainer.train)
