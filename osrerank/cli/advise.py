"""``osrerank advise``: does reranking help on this index, and with which depth and weight of the first pass?"""

import json
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import client_of, wants_json
from osrerank.cli.settings_file import refuse_existing, write_index_settings
from osrerank.cli.sources import SOURCE
from osrerank.options.passages import Passages
from osrerank.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from osrerank.decision.advice.advise import IndexAdvice

OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--index", "-i", required=True, help="Index to search.")
@click.option("--queries", required=True, type=SOURCE, help="Queries, in any form that `osrerank run` reads.")
@click.option(
    "--qrels", required=True, type=SOURCE, help="Judgments; queries without a relevant document are left out."
)
@click.option("--measure", "-m", default="nDCG@10", show_default=True, help="What is compared, by ir-measures' names.")
@click.option("--html", type=OUTPUT, help="Report to write; one file that needs no other.")
@click.option("--output", "-o", type=OUTPUT, default=SETTINGS_FILE, show_default=True, help="Settings file to write.")
@click.option("--force", is_flag=True, help="Change the index's part of that file if it exists; comments are lost.")
@click.pass_context
def advise(
    context: click.Context,
    /,
    *,
    index: str,
    queries: Path,
    qrels: Path,
    measure: str,
    html: Path | None,
    output: Path,
    force: bool,
) -> None:
    """Say whether reranking helps, and whether another depth or weight of the first pass is better.

    \b
    osrerank advise --index articles --queries queries.tsv --qrels qrels.txt --html advice.html

    Every judged query is searched once, with the index's own options. A paired t-test says whether reranking as it is
    now helps or hurts, or how many more queries would decide it. Depth and weight of the first pass are chosen by
    cross-validation, so that the promised value holds for new queries. The current setting stays unless another one is
    shown to be better, or it hurts. Only a change is written to the settings file, which `connect` reads. Stored
    vectors stay valid.
    """
    from osrerank.cli.batch import progress  # noqa: PLC0415 - numpy
    from osrerank.decision.advice import report  # noqa: PLC0415 - likewise
    from osrerank.decision.advice.advise import advise as advice_on  # noqa: PLC0415 - likewise
    from osrerank.decision.advice.advise import judged_queries  # noqa: PLC0415 - likewise
    from osrerank.formats.files import write_atomically  # noqa: PLC0415 - likewise
    from osrerank.formats.topics import read_queries  # noqa: PLC0415 - likewise
    from osrerank.formats.trec import read_qrels  # noqa: PLC0415 - likewise

    refuse_existing(output, force=force)
    judgments = read_qrels(qrels)
    asked = judged_queries(read_queries(queries), judgments)
    no_cache = {"cache_mb": 0, "cache_local_mb": 0}  # so that scoring is timed
    with closing(client_of(context, settings=no_cache)) as client:
        _tell_lacking(client, index)
        with progress(len(asked), 0) as advance:
            advice = advice_on(client, index, asked, judgments, measure=measure, advance=advance)
    notes = f"Made by osrerank advise from {len(advice.found)} queries: {report.headline(advice)}."
    settings, written = "Nothing to change.", "nothing to change"
    if advice.recommended:
        settings = write_index_settings(output, notes, index, settings_table(advice))
        written = ", ".join(f"{name} = {value}" for name, value in advice.recommended.items())
    if html:
        write_atomically(html, [report.html_page(advice, judgments, settings)])
    if wants_json(context):
        click.echo(json.dumps(report.as_json(advice)))
        return
    click.echo("\n".join([*report.lines(advice), *report.extreme_lines(advice), f"{output}: {written}"]))


def _tell_lacking(client: Any, index: str) -> None:
    """Say on standard error how many vectors are missing, and so computed during the searches, if any are."""
    from osrerank.errors import ConfigError  # noqa: PLC0415 - with the rest
    from osrerank.indexing.estimate import estimate  # noqa: PLC0415 - numpy

    with suppress(ConfigError):  # a cross-encoder has none
        known = estimate(client, index)
        if known.coverage.lacks:
            click.echo(f"searches compute missing vectors of their hits; to build all beforehand: {known}", err=True)


def settings_table(advice: "IndexAdvice") -> dict[str, Any]:
    """Return the recommended options as a settings file has them, with fields and other options of the index."""
    options = advice.options
    table = {**advice.recommended, "query_fields": options.query_fields, "fields": options.fields}
    if isinstance(options.passages, Passages) and "passages" in table:
        table["passages"] = {name: value for name, value in asdict(options.passages).items() if value is not None}
    return table
