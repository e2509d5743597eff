"""``osrerank advise``: does reranking help on this index, with which setting, and what does it cost?"""

import json
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import DURATION, MODEL_SETTINGS, client_of, wants_json
from osrerank.cli.settings_file import refuse_existing, settings_text, write_index_settings
from osrerank.client import connect
from osrerank.options.pairs import Pairs
from osrerank.options.passages import Passages
from osrerank.options.rerank import MONO_DUO
from osrerank.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from osrerank.decision.advice.advise import Advice
    from osrerank.decision.advice.tried import Wanted
    from osrerank.types import Qrels, Query

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option("--index", "-i", required=True, help="Index to search.")
@click.option("--queries", required=True, type=FILE, help="Queries, in any form that `osrerank run` reads.")
@click.option("--qrels", type=FILE, help="Judgments; without them only orders and costs are compared.")
@click.option("--measure", "-m", default="nDCG@10", show_default=True, help="What is compared, by ir-measures' names.")
@click.option("--p95-ms", type=DURATION, help="Limit of the 95th percentile of a search, in milliseconds.")
@click.option("--searches-per-s", default=10.0, show_default=True, type=DURATION, help="For which cores are given.")
@click.option("--sample", default=200, show_default=True, type=click.IntRange(10), help="Queries searched, at most.")
@click.option("--budget-s", default=300.0, show_default=True, type=DURATION, help="Time for searching and timing.")
@click.option("--compare", "models", multiple=True, help="Another model to try; may be given several times.")
@click.option("--seed", default=0, show_default=True, help="Of the sample.")
@click.option("--html", type=OUTPUT, help="Report to write, with diagrams; one file that needs no other.")
@click.option("--pool", type=OUTPUT, help="Hits without judgments to write, as candidates for a judge.")
@click.option(
    "--output", "-o", type=OUTPUT, default=SETTINGS_FILE, show_default=True, help="Settings file to write with --qrels."
)
@click.option("--force", is_flag=True, help="Change the index's part of that file if it exists; comments are lost.")
@click.pass_context
def advise(context: click.Context, /, **options: Any) -> None:
    """Say whether reranking helps, with which setting, and what it costs.

    \b
    osrerank advise --index articles --queries queries.tsv --qrels qrels.txt --p95-ms 200 --html advice.html
    osrerank --model osrerank/mono advise --index articles --queries queries.tsv --compare osrerank/mono-small

    Every query of a sample is searched once, with the index's own options. A paired t-test says whether reranking as it
    is now helps or hurts, or how many more queries would decide it. Depth, weight of the first pass, model, passages,
    pairs and sentences are chosen by cross-validation among those that are fast enough, so that the promise is of
    queries that were not seen. The best goes to the settings file, which `connect` reads.
    """
    from osrerank.decision.advice.tried import Wanted  # noqa: PLC0415 - numpy
    from osrerank.formats.topics import read_queries  # noqa: PLC0415 - likewise
    from osrerank.formats.trec import read_qrels  # noqa: PLC0415 - likewise

    if options["qrels"]:
        refuse_existing(options["output"], force=options["force"])
    queries = read_queries(options["queries"])
    qrels = read_qrels(options["qrels"]) if options["qrels"] else None
    names = ("measure", "p95_ms", "sample", "budget_s", "searches_per_s", "seed")
    wanted = Wanted(**{name: options[name] for name in names})
    advice = _advice(context, queries, qrels, wanted, options)
    settings = _settings(advice, options["output"] if qrels else None)
    _write(advice, qrels, settings, options)
    _say(advice, options, as_json=wants_json(context), is_written=qrels is not None)


def _advice(
    context: click.Context,
    queries: "tuple[Query, ...]",
    qrels: "Qrels | None",
    wanted: "Wanted",
    options: dict[str, Any],
) -> "Advice":
    from osrerank.cli.batch import progress  # noqa: PLC0415 - numpy
    from osrerank.decision.advice.advise import advise as advice_on  # noqa: PLC0415 - likewise

    with ExitStack() as stack:
        first = stack.enter_context(closing(client_of(context)))
        clients = {first.reranker.settings.model: first}
        given = {name: context.obj[name] for name in ("url", *MODEL_SETTINGS) if name != "model"}
        for model in options["models"]:
            clients[model] = stack.enter_context(closing(connect(**given, model=model)))
        total = min(wanted.sample, len(queries)) * len(clients)
        advance = stack.enter_context(progress(total, 0))
        return advice_on(clients, options["index"], queries, qrels, wanted, advance=advance)


def _settings(advice: "Advice", output: Path | None) -> str:
    """Return the content of the settings file, written where there are judgments."""
    from osrerank.decision.advice.words import headline  # noqa: PLC0415 - see advise

    notes = f"Made by osrerank advise from {advice.queries} queries: {headline(advice)}."
    setting = advice.recommended_setting
    if setting is not None and setting.model != advice.current.model:
        notes += f"\nIts model is set elsewhere: OSRERANK_MODEL={setting.model}"
    fields = {name: getattr(advice.options, name) for name in ("query_fields", "fields")}
    table = {**advice.recommended, **fields}
    if isinstance(advice.options.passages, Passages) and table.get("passages") == advice.current.passages:
        table["passages"] = {
            name: value for name, value in asdict(advice.options.passages).items() if value is not None
        }
    if table["pipeline"] == MONO_DUO and advice.options.pairs != Pairs():
        table["pairs"] = asdict(advice.options.pairs)
    if output is None:
        return settings_text(notes, {}, {advice.index: table})
    return write_index_settings(output, notes, advice.index, table)


def _write(advice: "Advice", qrels: "Qrels | None", settings: str, options: dict[str, Any]) -> None:
    """Write the report and the pool, where they are asked for."""
    from osrerank.decision.advice.choose import order_of  # noqa: PLC0415 - see advise
    from osrerank.decision.advice.orders import write_pool  # noqa: PLC0415 - likewise
    from osrerank.decision.advice.report import report  # noqa: PLC0415 - likewise
    from osrerank.formats.files import write_atomically  # noqa: PLC0415 - likewise

    if options["html"]:
        write_atomically(options["html"], [report(advice, qrels, settings)])
    if options["pool"]:
        least = min(len(one.found) for one in advice.tried)
        found = advice.tried[0].found[:least]
        orders = [[one.first_pass() for one in found], [order_of(one, advice.current) for one in found]]
        orders += [[order_of(one, advice.current) for one in tried.found[:least]] for tried in advice.tried[1:]]
        known = qrels.judgments if qrels else {}
        count = write_pool(options["pool"], found, orders, known, seed=options["seed"])
        click.echo(f"{options['pool']}: {count:,} documents to judge, of {least:,} queries", err=True)


def _say(advice: "Advice", options: dict[str, Any], *, as_json: bool, is_written: bool) -> None:
    from osrerank.decision.advice.words import as_json as values_of  # noqa: PLC0415 - see advise
    from osrerank.decision.advice.words import example_lines, lines  # noqa: PLC0415 - likewise

    if as_json:
        click.echo(json.dumps(values_of(advice)))
        return
    said = [*lines(advice), *example_lines(advice)]
    if is_written:
        said.append(f"{options['output']}: {', '.join(f'{k} = {v}' for k, v in advice.recommended.items())}")
    click.echo("\n".join(said))
