"""Lightning: ``Trainer(..., callbacks=[ChameleonCallback("8GiB")])``."""

from __future__ import annotations

from typing import Any

from .keeper import SessionKeeper

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError(
        f"chameleon_lab.integrations.lightning needs Lightning, which does not load ({error}): install it with "
        "`pip install lightning`"
    ) from error


class ChameleonCallback(SessionKeeper, Callback):
    """Runs each ``trainer.fit()`` in a session of its own.

    A step ends with each batch in which an optimizer stepped, however many batches were accumulated for it. An
    evaluation belongs to the step that follows it.

    The arguments are those of :class:`~chameleon_lab.integrations.keeper.SessionKeeper`. With ``log=True`` the
    session's figures are logged at each step, through Lightning's ``log_dict``.
    """

    _optimizer_steps = 0

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open a session."""
        self._open()
        self._optimizer_steps = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the session's step, where an optimizer has stepped."""
        if trainer.global_step == self._optimizer_steps:
            return
        self._optimizer_steps = trainer.global_step
        self._end_step()
        if self.log_metrics:
            figures = {name: float(value) for name, value in self.metrics().items()}
            pl_module.log_dict(figures, on_step=True, on_epoch=False)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """End the session."""
        self.close()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """End the session; the exception then goes its usual way."""
        self.close()

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """End the session, where nothing else has."""
        self.close()
