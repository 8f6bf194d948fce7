"""``chameleon view``: a trace's timeline in a browser, without JupyterLab."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from pathlib import Path

import click

from ..export import export
from .common import failing_well, load_trace, step_of, step_option, with_examples, working


@click.command(
    "view",
    short_help="Open a trace's timeline in a browser.",
    epilog=with_examples(
        """
        chameleon view t.parquet
        chameleon view t.parquet --no-browser
        """
    ),
)
@click.argument("trace_file", metavar="TRACE")
@click.option("--no-browser", is_flag=True, help="Only write the page, and print its path.")
@step_option
def view(trace_file: str, no_browser: bool, index: int | None) -> None:
    """Write the timeline of TRACE as an offline page in the folder of temporary files, and open it in a browser.

    Where there is no browser, open the printed path in one, or copy the file to where one is.
    """
    trace = load_trace(trace_file)
    if index is not None:
        step_of(trace, index)
    folder = tempfile.mkdtemp(prefix="chameleon-")
    page = Path(folder, f"{Path(trace_file).stem}.html")
    try:
        with failing_well(trace_file), working("Drawing"):
            export(trace, page, step=index)
    finally:
        if not page.exists():
            os.rmdir(folder)
    print(page)
    if not no_browser:
        try:
            webbrowser.open(page.as_uri())
        except webbrowser.Error as error:
            click.echo(f"No browser could be opened ({error}): open the file in one", err=True)
