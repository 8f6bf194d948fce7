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

    A step ends with each optimizer step, however many batches were accumulated for it. An evaluation belongs to the
    step that follows it.

    The arguments are those of :class:`~chameleon_lab.integrations.keeper.SessionKeeper`. With ``log=True`` the
    session's figures are logged at each step, through Lightning's ``log_dict``.
    """

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Open a session: before the sanity check, so that it runs within the capacity too."""
        self._open()
        self._logged_step = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log, if asked to and an optimizer has stepped: the session's step has ended with it."""
        if self.log_metrics and trainer.global_step != self._logged_step:
            self._logged_step = trainer.global_step
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
