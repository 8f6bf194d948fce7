"""Hugging Face Trainer: ``Trainer(..., callbacks=[ChameleonCallback("8GiB")])``."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ..runtime import core
from ..runtime.patches import Patches
from .keeper import SessionKeeper

try:
    import accelerate  # noqa: F401 - the Trainer needs it, and says so only when it is used
    import safetensors.torch
    from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl
except ImportError as error:
    raise ImportError(
        f"chameleon_lab.integrations.transformers needs the Hugging Face Trainer, which does not load ({error}): "
        "install it with `pip install 'transformers[torch]'`"
    ) from error


class ChameleonCallback(SessionKeeper, TrainerCallback):
    """Runs each ``trainer.train()`` in a session of its own.

    A step ends with each optimizer step, however many micro-batches it has. An evaluation belongs to the step that
    follows it. Checkpoints are written from copies on the host, so that saving needs no room on the device.

    The arguments are those of :class:`~chameleon_lab.integrations.keeper.SessionKeeper`. With ``log=True`` the
    Trainer logs the session's figures whenever it logs the loss.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._trainer: Callable[[], Trainer | None] = lambda: None
        self._saving = _saving_from_host()

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Open a session."""
        self._open()
        self._saving.install()

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """Log, if asked to. The session's step has ended with the optimizer's."""
        trainer = self._trainer()
        if self.log_metrics and control.should_log and trainer is not None:
            trainer.log(self.metrics())
            control.should_log = True  # logging clears it, and the loss is still to come

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        """End the session."""
        self.close()

    def close(self, error: BaseException | None = None) -> None:
        """See :meth:`SessionKeeper.close`; after an exception in training it is called for you."""
        self._saving.remove()
        super().close(error)


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


def _host_copies(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors outside of the session's device. Those that share a storage share its copy."""
    copies: dict[str, Any] = {}
    storages: dict[int, torch.Tensor] = {}
    for name, tensor in tensors.items():
        address = core.storage_address(tensor) if _is_plain(tensor) else 0
        if not address:
            copies[name] = tensor
            continue
        if address not in storages:
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = tensor.detach().as_strided((count,), (1,), 0).view(torch.uint8)
            # Numpy's memory is none of the session's.
            storages[address] = torch.from_numpy(np.empty(len(whole), dtype=np.uint8)).copy_(whole)
        copies[name] = (
            storages[address]
            .view(tensor.dtype)
            .as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        )
    return copies


def _is_plain(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided and tensor.device.type == "cpu"


def _saving_from_host() -> Patches:
    """While installed, models are saved from host copies.

    safetensors takes the addresses of all tensors of a file and then writes them in one go. They would all have to be
    on the device at once, and stay there for good, since nothing says when the addresses are given up.
    """

    def save_pretrained(save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def from_host(
            model: PreTrainedModel,
            save_directory: Any,
            is_main_process: bool = True,
            state_dict: Mapping[str, Any] | None = None,
            *args: Any,
            **kwargs: Any,
        ) -> Any:
            copies = _host_copies(model.state_dict() if state_dict is None else state_dict)
            return save(model, save_directory, is_main_process, copies, *args, **kwargs)

        return from_host

    def save_file(save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def from_host(tensors: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
            return save(_host_copies(tensors), *args, **kwargs)

        return from_host

    return Patches(
        [(PreTrainedModel, "save_pretrained", save_pretrained), (safetensors.torch, "save_file", save_file)]
    )
