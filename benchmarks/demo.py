"""The main job in a minute: train a GPT in a quarter of the memory that it needs, and get the same bits.

python -m benchmarks.demo [--out build/demo] [--steps N] [--threads N] [--quick]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import chameleon_lab as cl
from chameleon_lab.util.files import write_then_rename
from chameleon_lab.util.units import format_bytes, format_seconds

from . import measure
from .measure import Run, median
from .models import CASES, Case

FRACTION = 4
LINK = "8GiB/s"


def say(text: str = "") -> None:
    """One line to the reader, at once."""
    print(text, flush=True)


class Demo:
    """The three runs and their files."""

    def __init__(self, case: Case, out: Path, steps: int, tiny: bool) -> None:
        self.case, self.out, self.steps, self.tiny = case, out, steps, tiny
        self.report: cl.Report | None = None
        self.pictured = ""

    def _train(
        self,
        session: Callable[[], cl.Session] | None,
        on_step: Callable[[int, float], None],
        on_end: Callable[[cl.Session], None] | None = None,
    ) -> Run:
        return measure.train(self.case, self.steps, session, tiny=self.tiny, on_step=on_step, on_end=on_end)

    def run(self) -> bool:
        """Run it all. True if every bit is the same and the memory was never exceeded."""
        total = measure.SKIPPED_STEPS + self.steps + measure.MEMORY_STEPS

        def counted(step: int, loss: float) -> None:
            end = "\n" if step + 1 == total or not sys.stdout.isatty() else "\r"
            if end == "\r" or step + 1 == total:
                print(f"   step {step + 1} of {total}, loss {loss:.4f}", end=end, flush=True)

        say(f"1. Training a {self.case.about}, in plain PyTorch.")
        plain = self._train(None, counted)

        say("\n2. Training it again while Chameleon Lab only records, to see how much memory a step needs.")
        watched = self._train(lambda: cl.Session(capacity=None, device="cpu"), counted)
        peak = watched.live_peak_bytes
        capacity = peak // FRACTION
        say(f"   At its peak a step holds {format_bytes(peak)}.")

        say(
            f"\n3. Training it once more on a device of {format_bytes(capacity)}, 1/{FRACTION} of that, behind a link "
            f"of {LINK}.\n   Step 1 warms up and step 2 is profiled; from step 3 on the planned policy runs."
        )

        def compared(step: int, loss: float) -> None:
            expected = plain.losses[step]
            same = "equal to the last bit" if loss.hex() == expected.hex() else "DIFFERENT"
            say(f"   step {step + 1:2}   loss in plain PyTorch {expected:.6f}   here {loss:.6f}   {same}")

        capped = self._train(lambda: cl.Session(capacity, device="cpu", link=LINK), compared, self._keep)
        say(f"\n{self.report}\n")
        return self._judge(plain, watched, capped, peak, capacity)

    def _keep(self, session: cl.Session) -> None:
        """Save the trace, the policy and the figure while the session is open."""
        self.report = session.report()
        self.out.mkdir(parents=True, exist_ok=True)
        trace = session.trace()
        trace.save(str(self.out / "trace.parquet"))
        if session.policy is not None:
            session.policy.save(self.out / "policy.json")
        try:
            from chameleon_lab.lab.figures.step_figures import step_figure

            figure = step_figure(trace, capacity_bytes=session.capacity_bytes)
        except ImportError as error:
            self.pictured = f"No figure: plotly is missing: pip install plotly ({error})"
            return
        with write_then_rename(self.out / "report.html") as beside:
            figure.write_html(beside)
        self.pictured = f"figure of the last step    {self.out / 'report.html'}"

    def _judge(self, plain: Run, watched: Run, capped: Run, peak: int, capacity: int) -> bool:
        comparison = measure.compare(capped.losses, plain.losses, capped.digests, plain.digests)
        most = max(capped.peaks)
        step_s, plain_s = median(capped.step_s), median(plain.step_s)
        if comparison.identical:
            say(
                f"All {len(plain.losses)} losses and all {len(plain.digests)} weights, gradients and optimizer states "
                "are equal to the last bit."
            )
        else:
            say(f"The run differs from plain PyTorch. First difference: {comparison.first_difference}.")
        say(
            f"The device never held more than {format_bytes(most)} of its {format_bytes(capacity)}"
            + ("." if most <= capacity else ": TOO MUCH.")
        )
        say(
            f"Device memory fell by {format_bytes(peak - most)}, process memory by "
            f"{format_bytes(max(0, watched.memory_bytes - capped.memory_bytes))}: "
            "swapped-out bytes stay in the host pool."
        )
        say(
            f"A step took {format_seconds(step_s)} against {format_seconds(plain_s)} in plain PyTorch and "
            f"{format_seconds(median(watched.step_s))} when only recorded.\n"
            "(One short run each; `make bench` measures properly.)"
        )
        say("\nTo look at:")
        if self.pictured:
            say(f"  {self.pictured}")
        say(f"  trace of the steps         {self.out / 'trace.parquet'}")
        say(f"  policy in force            {self.out / 'policy.json'}")
        return comparison.identical and most <= capacity


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; 0 if it is bit-identical and within the capacity, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo"), help="folder for what it writes (%(default)s)"
    )
    parser.add_argument(
        "--steps", type=measure.count, default=7, help="steps after the first three (%(default)s)"
    )
    parser.add_argument("--threads", type=measure.count, default=1, help="threads of an op (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tiny model")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    return 0 if Demo(CASES["char-gpt"], options.out, options.steps, options.quick).run() else 1


if __name__ == "__main__":
    sys.exit(main())
