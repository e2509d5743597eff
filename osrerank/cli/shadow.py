"""``osrerank shadow``: report what reranking would have changed in an application's searches."""

import json
from pathlib import Path

import click

from osrerank.cli.options import wants_json
from osrerank.cli.path_types import FILE, OUTPUT_FILE


@click.group()
def shadow() -> None:
    """Report on shadow mode.

    In shadow mode, which the option traffic sets, searches return the search engine's own hits. They run again with
    reranking, only to record what reranking would change.
    """


@shadow.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--html", type=OUTPUT_FILE, help="HTML report to write, in one file.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.pass_context
def report(context: click.Context, /, *, files: tuple[Path, ...], html: Path | None, as_json: bool) -> None:
    """Report what reranking would have changed in the searches recorded in OSRERANK_SHADOW_FILE.

    \b
    osrerank shadow report shadow.jsonl --html shadow.html
    """
    from rich.markup import escape

    from osrerank.cli.tables import console, table
    from osrerank.decision.use import shadow_page
    from osrerank.decision.use.shadow import read_report
    from osrerank.formats.files import write_atomically

    shadow_report = read_report(files)
    if html:
        write_atomically(html, [shadow_page.html_page(shadow_report)])
    if as_json or wants_json(context):
        click.echo(json.dumps(shadow_report.as_json()))
        return
    screen = console()
    screen.print(shadow_page.headline(shadow_report), highlight=False, markup=False)
    outcomes = [(escape(name), *counts) for name, *counts in shadow_page.outcome_rows(shadow_report)]
    screen.print(table(shadow_page.COLUMNS, outcomes))
    if shadow_report.compared:
        screen.print(table(("in the top ten", *shadow_page.COLUMNS[1:]), shadow_page.change_rows(shadow_report)))
    screen.print(table(("", "p50", "p95"), shadow_page.number_rows(shadow_report)))
    for note in shadow_page.notes(shadow_report):
        screen.print(note, highlight=False, markup=False)
    if shadow_report.most_changed:
        screen.print("\nThe searches that change most:", highlight=False)
    for record in shadow_report.most_changed:
        screen.print(f"  {shadow_page.example_line(record)}", highlight=False, markup=False)
