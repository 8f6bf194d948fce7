"""``chameleon diff``: the differences between two policies."""

from __future__ import annotations

import click

from ..policy import diff as diff_policies
from .common import ExitCode, Failure, json_option, load_policy, print_json, with_examples


@click.command(
    "diff",
    short_help="Compare two policies.",
    epilog=with_examples(
        """
        chameleon diff before.json after.json
        chameleon diff --json before.json after.json | jq '.added | length'
        chameleon diff before.json after.json > changes.txt || echo they differ
        """
    ),
)
@click.argument("a_file", metavar="A")
@click.argument("b_file", metavar="B")
@json_option
@click.pass_context
def diff(context: click.Context, a_file: str, b_file: str, as_json: bool) -> None:
    """Show what has to change in policy A to get policy B.

    Exits as diff(1) does: with 0 if they are the same, 1 if they differ, 2 if there is trouble.
    """
    try:
        found = diff_policies(load_policy(a_file), load_policy(b_file))
    except Failure as failure:
        failure.exit_code = ExitCode.USAGE  # type: ignore[misc]  # click reads it from the instance
        raise
    if as_json:
        print_json(found.to_dict())
    else:
        print(found)
    if found:
        context.exit(ExitCode.DIFFERENT)
