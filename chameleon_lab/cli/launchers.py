"""Programs that start the ranks of a job: ``chameleon run`` puts itself into each rank that they start."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import click

from .common import ExitCode, Failure

_OF_TORCH = ("torch.distributed.run", "torch.distributed.launch")
_OTHERS = ("mpirun", "mpiexec", "srun", "deepspeed", "horovodrun", "python", "python3")
"""Programs whose options are theirs to know: here ``chameleon run`` has its place behind them."""


@dataclass(frozen=True)
class Launch:
    """A command that starts the ranks of a job, each in a session of its own."""

    command: tuple[str, ...]

    def execute(self) -> NoReturn:
        """Become it: its signals and its exit code are those of this process."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os.execv(self.command[0], self.command)


@dataclass(frozen=True)
class _Launcher:
    """One that can be read: where its own options end, and the script begins."""

    name: str
    words: tuple[str, ...]
    """What Python runs it with."""
    parser: Callable[[], argparse.ArgumentParser]
    none: str
    """Its option for programs that are not Python's."""


def launch(target: str, arguments: Sequence[str], is_module: bool, own: Sequence[str]) -> Launch | None:
    """The launcher that ``chameleon run`` was given in place of a script, with it in each rank; None: it is a script.

    Args:
        target: the script, or the module.
        arguments: what follows it.
        is_module: was it given with ``-m``?
        own: the options of ``chameleon run``, without ``-m``.

    Raises click.UsageError, with what to write instead, for a launcher that cannot be taken so.
    """
    name = target if is_module else os.path.basename(target)
    if not is_module and name in _OTHERS and not os.path.isfile(target):
        _refuse(name, own, arguments)
    launcher = _launcher(name, arguments, is_module)
    if launcher is None:
        return None
    options = arguments[1:] if launcher.name == "accelerate launch" and not is_module else arguments
    found = _parsed(launcher, options)
    script, after = found.training_script, list(found.training_script_args)
    if not script:
        raise click.UsageError(f"{launcher.name} was given no script: name it after its options")
    before = list(options[: len(options) - len(after) - 1])
    if getattr(found, launcher.none.strip("-").replace("-", "_"), False) or getattr(found, "run_path", False):
        option = launcher.none if "--run-path" not in before else "--run-path"
        raise click.UsageError(
            f"{launcher.name} {option} starts no Python script that a session could be put around: leave {option} out, "
            f"or put the session where Python starts, with {' '.join(['chameleon run', *own, 'SCRIPT'])}"
        )
    if name == "torch.distributed.launch" and not found.use_env:
        raise click.UsageError(
            f"{name} gives each rank an option --local-rank: use torchrun, or its option --use-env where SCRIPT reads "
            "LOCAL_RANK from the environment"
        )
    module = ["-m"] if found.module else []
    before = [word for word in before if word not in ("-m", "--module")]
    if found.module and len(before) == len(options) - len(after) - 1:
        raise click.UsageError(f"write {launcher.name}'s option -m as a word of its own")
    if before[-1:] == ["--"]:
        before.pop()
    inner = ["-m", "chameleon_lab", "run", *own, *module, script, *after]
    return Launch((sys.executable, *launcher.words, *before, *inner))


def _launcher(name: str, arguments: Sequence[str], is_module: bool) -> _Launcher | None:
    if (name in _OF_TORCH) if is_module else name == "torchrun":
        module = name if is_module else _OF_TORCH[0]
        return _Launcher(name, ("-m", module), lambda: _torch_parser(module), "--no-python")
    if is_module and name == "accelerate.commands.launch":
        return _Launcher(name, ("-m", name), _accelerate_parser, "--no_python")
    if not is_module and name == "accelerate" and list(arguments[:1]) == ["launch"]:
        words = ("-m", "accelerate.commands.accelerate_cli", "launch")
        return _Launcher("accelerate launch", words, _accelerate_parser, "--no_python")
    return None


def _torch_parser(module: str) -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    parser = get_args_parser()
    if module == "torch.distributed.launch":
        parser.add_argument("--use-env", "--use_env", action="store_true")
    return parser


def _accelerate_parser() -> argparse.ArgumentParser:
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError as error:
        raise Failure(
            "accelerate is not installed for this Python: pip install accelerate", ExitCode.USAGE
        ) from error
    parser: argparse.ArgumentParser = launch_command_parser()
    return parser


def _parsed(launcher: _Launcher, options: Sequence[str]) -> argparse.Namespace:
    """Its options, by its own parser, whose complaint is one line of ours."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return launcher.parser().parse_args(list(options))
    except SystemExit as ended:
        if not ended.code:  # it was asked for help, and gave it
            raise
        lines = said.getvalue().strip().splitlines() or [launcher.name]
        raise click.UsageError(lines[-1]) from None


def _refuse(name: str, own: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    if name.startswith("python"):
        raise click.UsageError(f"leave {name} out: chameleon run takes the script, or a module with -m")
    raise click.UsageError(
        f"{name} starts processes of its own, outside of the session: write {name} OPTIONS "
        f"{' '.join(['chameleon run', *own, 'SCRIPT'])} in place of {name} OPTIONS python SCRIPT"
    )
