"""``%chameleon`` and ``%%chameleon``: a session driven from notebook cells."""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.display import display

from ..errors import BelowFloorError, ChameleonError
from ..lifecycle import SessionStage, open_session
from ..policy import Policy
from ..report.session_report import Report
from ..run_files import NO_STEP, why_no_policy
from ..trace import Trace
from ..util.units import exact_bytes, format_bytes
from .panel import comm

if TYPE_CHECKING:
    from ..session import Session

_HELP = """\
%chameleon start [OPTIONS]   begin a session: everything that trains from now on runs in it
%chameleon status            where the session stands, and what to do next
%chameleon dashboard         figures that move while the next cells train
%chameleon report            its figures, as a table and, in a notebook, drawn
%chameleon stop              end it; every tensor comes back and stays valid
%chameleon save FILE         write the policy (.json), or the trace (.parquet)
%chameleon panel             show the panel beside the notebook, in JupyterLab
%chameleon load FILE         use a policy (.json), now or at the next start; or show a trace (.parquet)
%%chameleon [OPTIONS]        run one cell in a session of its own, then report

OPTIONS
  --capacity SIZE      device bytes the session may use, such as 256MiB; 0.25 or 25% is a quarter of the
                       device. Left out: that of the policy, if there is one, or all that the GPU has.
                       unlimited, or the cpu device without one: the session only records, and nothing
                       ever leaves the device
  --link BANDWIDTH     between device and host, such as 8GiB/s, or OUT,IN; only the cpu device's can be set
  --device NAME        cuda or cuda:1 is a GPU, cpu the embedded device: host memory under a budget.
                       Left out: the current GPU, or cpu where there is none
  --disk DIR[:SIZE]    a folder on a disk that takes what is away instead of the host's memory, such as
                       /scratch:200GiB; of the cpu device only
  --verify             compare a checksum of whatever comes back from the disk
  --policy FILE        use this policy instead of a generated one
  --rematerialize HOW  replay ops instead of copying what they made: no, cheap, all or trusting
  --no-planning        no policy: eviction alone keeps the run within the capacity
  --inference-steps    each call of a model without gradients ends a step, --no-inference-steps: none does
  --stacks             record the Python stack of every op of every step (slow); else of one step of each kind
  --no-stacks          record none

Python values go in braces: %chameleon start --capacity {peak // 4}"""

_COMMANDS = ("start", "status", "dashboard", "report", "stop", "panel", "save", "load", "help")
_EXAMPLE = "%chameleon start --capacity 256MiB"


def load(shell: InteractiveShell) -> None:
    """Add ``%chameleon`` and ``%%chameleon`` to a shell, with their tab completion."""
    shell.register_magics(ChameleonMagics(shell))
    for command in ("%chameleon", "%%chameleon"):
        shell.set_hook("complete_command", _complete, str_key=command)
    comm.register()


def unload(shell: InteractiveShell) -> None:
    """Take the magics and their completion away again. A session that is open stays open, and this says so."""
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("chameleon", None)
    hooks = shell.strdispatchers.get("complete_command")
    for command in ("%chameleon", "%%chameleon"):
        if hooks is not None:
            hooks.strs.pop(command, None)
    comm.unregister()
    if open_session() is not None:
        print("The session stays open: chameleon_lab.current_session().stop() ends it.")


class _Parser(argparse.ArgumentParser):
    """Options of one sub-command; every mistake is one line, as a UsageError."""

    def __init__(self, command: str) -> None:
        super().__init__(prog=command, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. %chameleon lists what there is")

    def parse(self, words: list[str]) -> argparse.Namespace:
        options, rest = self.parse_known_args(words)
        if rest:
            known = [name for action in self._actions for name in action.option_strings]
            raise UsageError(f"{self.prog} does not know {rest[0]!r}{_closest(rest[0], known)}")
        return options


def _session_options(command: str) -> _Parser:
    parser = _Parser(command)
    parser.add_argument("--capacity")
    parser.add_argument("--link")
    parser.add_argument("--device")
    parser.add_argument("--disk")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--policy")
    parser.add_argument("--rematerialize", default=True)
    parser.add_argument("--no-planning", action="store_true")
    parser.add_argument("--inference-steps", action=argparse.BooleanOptionalAction)
    parser.add_argument("--stacks", action="store_true")
    parser.add_argument("--no-stacks", dest="own_stacks", action="store_false")
    return parser


@magics_class
class ChameleonMagics(Magics):
    """The magics, and the session that they last saw: it can still be reported and saved after its end."""

    shell: InteractiveShell  # IPython allows None, which nobody gives

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._session: Session | None = None
        self._next_policy: Policy | None = None

    @line_cell_magic
    def chameleon(self, line: str, cell: str | None = None) -> None:
        """Run training in less device memory; see the help that ``%chameleon`` prints."""
        __tracebackhide__ = True  # an error in the cell is shown from the cell on
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"%chameleon: {error} in {line!r}: close the quote") from None
        if cell is not None:
            self._run(words, cell)
            return
        name, *rest = words or ["help"]
        if name not in _COMMANDS:
            raise UsageError(f"%chameleon does not know {name!r}{_closest(name, list(_COMMANDS))}")
        with _one_line():
            getattr(self, f"_{name}")(rest)

    # ------------------------------------------------------------------------------------------ sub-commands

    def _help(self, words: list[str]) -> None:
        _Parser("%chameleon help").parse(words)
        print(_HELP)

    def _start(self, words: list[str]) -> None:
        session = self._new_session(_session_options("%chameleon start"), words)
        session.start()
        self._session, self._next_policy = session, None
        print(_status(session))

    def _status(self, words: list[str]) -> None:
        _Parser("%chameleon status").parse(words)
        session = self._newest()
        if session is None:
            waiting = (
                "" if self._next_policy is None else f", with {_headline(self._next_policy)} waiting for it"
            )
            print(f"No session{waiting}. Next: {_start_with(self._next_policy)}")
        else:
            print(_status(session, self._next_policy))

    def _dashboard(self, words: list[str]) -> None:
        _Parser("%chameleon dashboard").parse(words)
        if not self._in_notebook:
            raise UsageError("%chameleon dashboard: it needs a notebook. Try %chameleon report")
        display(self._needed("dashboard").dashboard())

    def _report(self, words: list[str]) -> None:
        _Parser("%chameleon report").parse(words)
        self._show(self._needed("report"))

    def _stop(self, words: list[str]) -> None:
        _Parser("%chameleon stop").parse(words)
        session = open_session()
        if session is None:
            raise UsageError(f"%chameleon stop: no session is open. Begin one with {_EXAMPLE}")
        self._session = session
        session.stop()
        print(_status(session))

    def _panel(self, words: list[str]) -> None:
        _Parser("%chameleon panel").parse(words)
        if not comm.register():
            raise UsageError("%chameleon panel: there is no panel outside Jupyter. Try %chameleon report")
        comm.call_panel("show")
        print("The panel is beside the notebook in JupyterLab, where its extension is installed.")

    def _save(self, words: list[str]) -> None:
        path = self._file("%chameleon save", words)
        session = self._needed("save")
        if path.endswith(".parquet"):
            trace = session.trace()
            if not len(trace):
                raise UsageError(f"%chameleon save {path}: no trace: {NO_STEP}")
            trace.save(path)
            print(f"Saved the trace of {_count(len(trace), 'step')} in {path}.")
            return
        policy = session.policy_to_save()
        if policy is None:
            raise UsageError(f"%chameleon save {path}: no policy: {why_no_policy(session)}")
        policy.save(path)
        print(f"Saved {_headline(policy)} in {path}.")

    def _load(self, words: list[str]) -> None:
        path = self._file("%chameleon load", words)
        if path.endswith(".parquet"):
            trace = Trace.load(path, partial=True)
            if trace.lost is not None:
                print(f"Warning: {trace.lost}")
            text = f"{path}: {_count(len(trace), 'step')}"
            if len(trace):
                step = trace.last
                text += (
                    f"; newest: {len(step.ops)} ops, {len(step.storages)} storages, peak resident "
                    f"{format_bytes(step.peak_bytes)} of {format_bytes(step.live_peak_bytes)} alive"
                )
            print(text)
            self._draw_step(trace)
            return
        policy = Policy.load(path)
        session = open_session()
        if session is None:
            self._next_policy = policy
            print(f"Loaded {_headline(policy)}. Next: {_start_with(policy)}, which will use it")
        else:
            session.policy = policy
            print(f"Loaded {_headline(policy)}. It is in force from the next whole step on")

    # ------------------------------------------------------------------------------------------ the cell magic

    def _run(self, words: list[str], cell: str) -> None:
        """Run a cell in a session of its own. Its exception ends the session, and then goes its usual way."""
        __tracebackhide__ = True
        if words and not words[0].startswith("-"):
            raise UsageError(
                f"%%chameleon takes options and a cell, and not {words[0]!r}: write %chameleon {words[0]}, "
                "or leave it out"
            )
        pieces = self._compiled(cell)
        with _one_line():
            session = self._new_session(_session_options("%%chameleon"), words)
            session.start()
        self._session, self._next_policy = session, None
        try:
            for code in pieces:
                exec(code, self.shell.user_ns)
        except BaseException as error:
            session.close(error)
            raise
        session.stop()
        self._show(session)

    def _compiled(self, cell: str) -> list[CodeType]:
        """The cell as code: its statements, and its last expression apart, whose value is displayed as usual.

        Not ``shell.run_cell``: that shows an exception and then swallows it, and "run all" would go on.
        """
        shell = self.shell
        source = shell.transform_cell(cell)
        name = shell.compile.cache(source, shell.execution_count, raw_code=cell)
        tree = shell.transform_ast(shell.compile.ast_parse(source, filename=name))
        shown = tree.body and isinstance(tree.body[-1], ast.Expr)
        compiled: Callable[[Any, str, str], CodeType] = shell.compile  # takes a tree, and is typed for text
        if not shown or shell.displayhook.semicolon_at_end_of_expression(cell):
            return [compiled(tree, name, "exec")]
        last = ast.Interactive([tree.body.pop()])
        return [compiled(tree, name, "exec"), compiled(last, name, "single")]

    # ------------------------------------------------------------------------------------------ helpers

    def _new_session(self, parser: _Parser, words: list[str]) -> Session:
        options = parser.parse(words)
        other = open_session()
        if other is not None:
            self._session = other
            raise UsageError(f"{parser.prog}: {other!r} is open. End it first with %chameleon stop")
        policy = self._next_policy if options.policy is None else options.policy
        with _one_line(TypeError, ValueError):
            from ..session import Session

            session = Session(
                options.capacity,
                device=options.device,
                link=options.link,
                disk=options.disk,
                verify=options.verify,
                policy=policy,
                planning=not options.no_planning,
                inference_steps=options.inference_steps,
                rematerialize=options.rematerialize,
                stacks=options.stacks or ("once" if options.own_stacks else False),
            )
        if options.policy is None and policy is not None:
            print(f"Using {_headline(policy)}, as loaded.")
        return session

    def _newest(self) -> Session | None:
        """The open session, else the last one that these magics saw."""
        self._session = open_session() or self._session
        return self._session

    def _needed(self, command: str) -> Session:
        session = self._newest()
        if session is None:
            raise UsageError(
                f"%chameleon {command}: there has been no session yet. Begin one with {_EXAMPLE}"
            )
        return session

    @staticmethod
    def _file(command: str, words: list[str]) -> str:
        parser = _Parser(command)
        parser.add_argument("file", metavar="FILE")
        path: str = os.path.expanduser(parser.parse(words).file)
        if not path.endswith((".json", ".parquet")):
            raise UsageError(
                f"{command}: {path!r} tells no format. End it with .json for the policy, or .parquet for the trace"
            )
        return path

    @property
    def _in_notebook(self) -> bool:
        return hasattr(self.shell, "kernel")

    def _show(self, session: Session) -> None:
        report = session.report()
        if not self._in_notebook:
            print(report)
        else:
            display({"text/plain": str(report), "text/html": report._repr_html_()}, raw=True)
            self._draw_step(session.trace())
        self._say_if_no_step(report)

    def _draw_step(self, trace: Trace) -> None:
        if not self._in_notebook or not len(trace) or not len(trace.last.ops):
            return
        from .figures.packages import MissingPackageError
        from .figures.step_figures import step_figure

        try:
            display(step_figure(trace))
        except MissingPackageError as error:
            print(error)

    @staticmethod
    def _say_if_no_step(report: Report) -> None:
        if not report.steps:
            print(NO_STEP[:1].upper() + NO_STEP[1:])


@contextmanager
def _one_line(*more: type[Exception]) -> Iterator[None]:
    """Shows errors that say what to do, and those of the types in ``more``, without a traceback."""
    reported: tuple[type[BaseException], ...] = (ChameleonError, BelowFloorError, ImportError, *more)
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise UsageError(str(error)) from None
        raise UsageError(f"{error.filename}: {error.strerror}. Check the path") from None
    except reported as error:
        raise UsageError(str(error)) from None


def _status(session: Session, waiting: Policy | None = None) -> str:
    capacity = "recording only" if session.capacity_bytes is None else format_bytes(session.capacity_bytes)
    report = session.report()
    steps = _count(report.steps, "step")
    if not session.is_open:
        return (
            f"Session on {session.device} ended after {steps} ({capacity}). "
            f"Next: %chameleon report, %chameleon save FILE, or {_start_with(waiting)}"
        )
    text = f"Session on {session.device}, {capacity}, {session.stage}, {steps}. Next: "
    if session.capacity_bytes is None:
        what = "train, then %chameleon report" if report.steps == 0 else "%chameleon report"
        return text + what + ", or %chameleon stop"
    if not session.planning:
        return text + "train on, %chameleon report, or %chameleon stop (no planning: eviction only)"
    if session.stage is SessionStage.STABLE:
        return text + "train on, %chameleon report, or %chameleon stop"
    left = max(1, session.warmup_steps + 1 - report.steps)
    return text + f"train; a policy is in force after {_count(left, 'more step')}"


def _start_with(policy: Policy | None) -> str:
    """How to begin a session: with a policy, in the capacity that it was made for, to the byte."""
    if policy is None:
        return _EXAMPLE
    return f"%chameleon start --capacity {exact_bytes(policy.capacity_bytes)}"


def _headline(policy: Policy) -> str:
    replays = f" and {_count(len(policy.drops), 'replay')}" if policy.drops else ""
    return (
        f"a policy of {_count(len(policy.swaps), 'swap')}{replays} for {format_bytes(policy.capacity_bytes)}"
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _closest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word.split("=")[0], known, n=1)
    if close:
        return f": did you mean {close[0]!r}?"
    return f": it knows {', '.join(known)}" if known else ": it takes no more than that"


def _complete(shell: InteractiveShell, event: Any) -> list[str]:
    """Completions of a ``%chameleon`` line: its sub-commands, then the options of the one that is there."""
    words = event.line.split()
    options = [name for action in _session_options("")._actions for name in action.option_strings]
    if words[0] == "%%chameleon":
        return options
    at_first = len(words) == 1 or (len(words) == 2 and not event.line.endswith(" "))
    if at_first:
        return list(_COMMANDS)
    return options if words[1] == "start" else []
