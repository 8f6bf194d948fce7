"""The command ``chameleon``: one file a command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from .._version import __version__
from ..ranks.identity import identity
from .advise import advise
from .common import ExitCode, with_examples
from .diff import diff
from .export import export
from .launchers import Launch
from .output import held, spoken, tell
from .plan import plan
from .recover import recover
from .report import report
from .run import Run, run
from .simulate import simulate
from .sweep import sweep
from .view import view

_EXIT_CODES = """
0    success; of diff: the policies are equal
1    the script's own error (run, advise); the policies differ (diff)
2    the command line is wrong; of diff: any error
3    the capacity is below the floor, or the policy (recover: every way to go on) does not fit into it
4    a file, stdout or stderr cannot be read or written, or is not what it should be
130  interrupted with Ctrl-C
run and advise pass on the exit code of the script.
"""


@click.group(
    "chameleon",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=with_examples(
        """
        chameleon advise train.py --epochs 1
        chameleon run --capacity 512MiB --save-trace t.parquet train.py --epochs 1
        chameleon plan t.parquet --capacity 256MiB -o policy.json
        chameleon run --policy policy.json train.py
        """,
        exit_codes=_EXIT_CODES,
    ),
)
@click.version_option(__version__, prog_name="chameleon")
def chameleon() -> None:
    """Train PyTorch models in less device memory: advise, run, plan, predict, compare and report."""


for _command in (advise, run, plan, simulate, sweep, diff, report, export, view, recover):
    chameleon.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The entry point: ``arguments`` (those of the process) to an exit code."""
    try:
        with held():
            result = chameleon.main(arguments, prog_name="chameleon", standalone_mode=False)
    except click.ClickException as error:
        context = getattr(error, "ctx", None) or click.get_current_context(silent=True)
        path = context.command_path if context else "chameleon"
        message = error.format_message().rstrip(".")
        hint = f" (see {path} --help)" if isinstance(error, click.UsageError) else ""
        tell(f"{path}{spoken(identity())}: {message}{hint}")
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(ExitCode.INTERRUPTED)
    except OSError as error:
        tell(f"chameleon: cannot write the output: {error.strerror or error}")
        sys.exit(ExitCode.BAD_FILE)
    if isinstance(result, Run | Launch):
        result.execute()  # out here, so that nothing of click is around the script
    sys.exit(result if isinstance(result, int) else ExitCode.OK)
