"""``chameleon export``: a trace in another tool's format."""

from __future__ import annotations

import click

from ..errors import ChameleonError
from ..export import FORMATS
from ..export import export as write
from .common import failing_well, load_trace, step_option, with_examples, working

_LISTED = "\n".join(
    f"{each.name:<10}{', '.join(each.endings):<18}{each.meaning}" for each in FORMATS.values()
)


@click.command(
    "export",
    short_help="Write a trace for Perfetto, chrome://tracing, HTA, pandas.",
    epilog=with_examples(
        """
        chameleon export t.parquet t.json.gz
        chameleon export t.parquet tables.csv
        chameleon export t.parquet ops.csv --table ops
        """
    ),
    help="Write TRACE to OUT in the format that the ending of OUT stands for:\n\n\b\n" + _LISTED,
)
@click.argument("trace_file", metavar="TRACE")
@click.argument("path", metavar="OUT")
@click.option("--format", type=click.Choice(list(FORMATS)), help="Whatever the ending of OUT.")
@click.option("--table", metavar="NAME", help="With csv and parquet: this table alone, to OUT itself.")
@step_option
def export(trace_file: str, path: str, format: str | None, table: str | None, index: int | None) -> None:
    """Write a trace in another tool's format."""
    trace = load_trace(trace_file)
    with failing_well(path), working("Writing"):
        try:
            written = write(trace, path, format, step=index, table=table)
        except ValueError as error:
            if isinstance(error, ChameleonError):
                raise
            raise click.UsageError(str(error)) from None
    for each in written:
        print(f"Saved in {each}")
