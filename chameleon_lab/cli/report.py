"""``chameleon report``: a trace in figures, in the terminal or as an HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from ..ranks.side_by_side import COLUMNS, merge
from ..report.trace_report import STEP_COLUMNS, TraceReport, followed, step_cells
from ..util.files import write_then_rename
from .common import (
    failing_well,
    json_option,
    load_trace,
    print_json,
    print_table,
    step_of,
    step_option,
    with_examples,
    working,
)

_MOST_STEPS = 20


@click.command(
    "report",
    short_help="Report on a trace, or write the report as HTML.",
    epilog=with_examples(
        """
        chameleon report t.parquet
        chameleon report t.parquet --html t.html
        chameleon report t.parquet --json | jq '.history[].stall_s'
        chameleon report oom_snapshot.pickle
        chameleon report traces/ --html ranks.html
        """
    ),
)
@click.argument("trace_file", metavar="TRACE")
@click.option("--html", "html_file", metavar="FILE", help="Write a report with figures, which opens offline.")
@step_option
@json_option
def report(trace_file: str, html_file: str | None, index: int | None, as_json: bool) -> None:
    """Show the steps of TRACE, and what fills the device in the newest.

    TRACE is a saved trace, or a recording of another tool: a memory snapshot, a Chrome trace or an execution trace of
    PyTorch, or an SQLite export of Nsight Systems. Its content decides, not its name.

    Of a file whose end is missing, the steps that are whole are shown, with a warning. Of a folder with the traces of a
    job's ranks, the ranks are shown side by side, those first that the others wait for.
    """
    if Path(trace_file).is_dir():
        _report_ranks(trace_file, html_file, index, as_json)
        return
    trace = load_trace(trace_file)
    step = step_of(trace, index)
    with failing_well(trace_file):
        found = TraceReport.of(trace, step)
    if html_file is not None:
        from ..lab.figures.html_report import html_report

        with failing_well(html_file), working("Drawing"):
            text = html_report(trace, step=step)
            with write_then_rename(html_file) as beside:
                beside.write_text(text, encoding="utf-8")
    if as_json:
        print_json(found.to_dict())
        return
    print_table(found.rows(), numbers=[1])
    print()
    newest = found.history[-_MOST_STEPS:]
    if len(newest) < len(found.history):
        print(f"The newest {len(newest)} of {len(found.history)} steps:")
    numbers = [column for column, head in enumerate(STEP_COLUMNS) if head != "Stage"]
    print_table((step_cells(each) for each in newest), STEP_COLUMNS, numbers)
    print()
    for each in newest:
        print(followed(each))
    if html_file is not None:
        print(f"\nSaved in {html_file}")


def _report_ranks(folder: str, html_file: str | None, index: int | None, as_json: bool) -> None:
    with failing_well(), working("Reading the ranks' traces"):
        found = merge(folder, step=index)
    if html_file is not None:
        from ..lab.figures.ranks_page import ranks_page

        with failing_well(html_file), write_then_rename(html_file) as beside:
            beside.write_text(ranks_page(found), encoding="utf-8")
    if as_json:
        print_json(found.to_dict())
        return
    print(found.title)
    texts = (
        COLUMNS.index("Rank"),
        COLUMNS.index("Host"),
        COLUMNS.index("Longest for"),
        COLUMNS.index("Program"),
    )
    numbers = [column for column in range(len(COLUMNS)) if column not in texts]
    print_table((row.cells() for row in found.rows), COLUMNS, numbers)
    for note in found.notes:
        print(note)
    if html_file is not None:
        print(f"\nSaved in {html_file}")
