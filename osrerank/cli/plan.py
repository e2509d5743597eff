"""``osrerank plan``: how many workers does a load need, and what do document vectors take?"""

import json
from contextlib import closing, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import DURATION, MODEL_SETTINGS, client_of, wants_json
from osrerank.options.rerank import MAX_DEPTH

if TYPE_CHECKING:
    from osrerank.decision.plan import Rates
    from osrerank.indexing.estimate import Estimate

POSITIVE, VARIATION = click.FloatRange(0, 1e6, min_open=True), click.FloatRange(0, 5)
GIVEN_VARIATION, SYNTHETIC_WORDS = 0.2, 60


@click.command()
@click.option("--searches-per-s", required=True, type=POSITIVE, help="Searches a second, on average.")
@click.option("--depth", default=100, show_default=True, type=click.IntRange(1, MAX_DEPTH), help="Candidates reranked.")
@click.option("--p95-ms", default=300.0, show_default=True, type=DURATION, help="Upper limit of the p95 response time.")
@click.option("--workers", type=click.IntRange(1), help="Also show this number of workers.")
@click.option("--index", "-i", help="Index whose documents are counted and measured, not synthetic ones.")
@click.option("--documents", type=click.IntRange(1), help="Documents to plan for.  [default: those of --index]")
@click.option("--threads", type=click.IntRange(0), help="CPU threads of a worker.  [default: the usable cores]")
@click.option("--pairs-per-s", type=POSITIVE, help="Pairs a second of one worker; skips the measurement.")
@click.option(
    "--variation",
    type=VARIATION,
    help="Coefficient of variation of service times.  [default: measured; 0.2 with --pairs-per-s]",
)
@click.option(
    "--first-pass-ms",
    default=18.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Time of the first pass, transport included.",
)
@click.option(
    "--burstiness",
    default=1.0,
    show_default=True,
    type=VARIATION,
    help="Coefficient of variation of the times between searches; 1 if they arrive at random.",
)
@click.pass_context
def plan(context: click.Context, /, **options: Any) -> None:
    """Say how many workers a load needs, and what document vectors take on disk.

    \b
    osrerank plan --searches-per-s 40 --documents 8800000
    osrerank --url https://localhost:9200 plan --searches-per-s 40 --index notes --workers 2
    osrerank plan --searches-per-s 40 --pairs-per-s 5000

    Measures the model in this process unless --pairs-per-s is given; a queueing formula gives the waits.
    """
    from osrerank.cli.tables import console, table  # noqa: PLC0415 - rich
    from osrerank.decision.plan import Load, least_workers, predict, storage  # noqa: PLC0415 - numpy

    rates, documents, lacking = _rates(context, options)
    load = Load(**{name: options[name] for name in ("searches_per_s", "p95_ms", "burstiness", "first_pass_ms")})
    requested = [predict(load, rates, options["workers"])] if options["workers"] else []
    needed = least_workers(load, rates)
    others = [predict(load, rates, count) for count in (needed, needed + 1, -(-3 * needed // 2))]
    rows = sorted({one.workers: one for one in [*requested, *others]}.values(), key=lambda one: one.workers)
    stored = storage(documents, rates) if documents else None
    if wants_json(context):
        report = {"load": asdict(load), "depth": options["depth"], "rates": asdict(rates), "needed": needed}
        click.echo(json.dumps({**report, "workers": [asdict(one) for one in rows], "storage_bytes": stored}))
        return
    click.echo("\n".join([*_lines(rates, options["depth"], stored), *filter(None, [lacking])]))
    click.echo(f"{load.searches_per_s:g} searches a second, p95 at most {load.p95_ms:g} ms: workers needed: {needed:,}")
    cells = [(f"{one.workers:,}", f"{one.busy:.0%}", f"{one.wait_ms:,.0f}", f"{one.p95_ms:,.0f}") for one in rows]
    console().print(table(("workers", "busy", "mean wait ms", "p95 ms"), cells))


def _rates(context: click.Context, options: dict[str, Any]) -> "tuple[Rates, int | None, str]":
    """Return a worker's rates, given or measured now, the number of documents, and a line on missing vectors."""
    from osrerank.bench.workload import synthetic  # noqa: PLC0415 - see plan
    from osrerank.decision.plan import Rates, measure, texts_of  # noqa: PLC0415 - likewise
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    depth, documents, variation = options["depth"], options["documents"], options["variation"]
    if options["pairs_per_s"]:
        if options["index"] or documents:
            raise click.UsageError("--index and --documents need a measurement: give them or --pairs-per-s, not both")
        return Rates(depth / options["pairs_per_s"], GIVEN_VARIATION if variation is None else variation), documents, ""
    lacking: Estimate | None = None
    if options["index"]:
        with closing(client_of(context)) as client:
            texts = texts_of(client, options["index"], depth)
            documents = documents or int(client.count(index=options["index"])["count"])
            lacking = _lacking(client, options["index"])
    else:
        texts = list(synthetic(SYNTHETIC_WORDS, queries=1, depth=depth)[0].documents.values())
    given = {**{name: context.obj[name] for name in MODEL_SETTINGS}, "threads": options["threads"]}
    rates = measure(Settings.load(**given), texts)
    if lacking and lacking.rate and not options["threads"]:
        rates = replace(rates, encoded_per_s=lacking.coverage.lacks / lacking.build_s)
    rates = rates if variation is None else replace(rates, variation=variation)
    return rates, documents, str(lacking or "")


def _lacking(client: Any, index: str) -> "Estimate | None":
    """Return how many vectors an index lacks and how long building them takes; None without vectors."""
    from osrerank.errors import ConfigError  # noqa: PLC0415 - with the rest
    from osrerank.indexing.estimate import estimate  # noqa: PLC0415 - likewise

    with suppress(ConfigError):
        return estimate(client, index)
    return None


def _lines(rates: "Rates", depth: int, stored: dict[str, float] | None) -> list[str]:
    took = f"{1000 * rates.search_s:,.1f} ms for a search at depth {depth} (variation {rates.variation:.2f})"
    lines = [f"a worker: {took}, {1 / rates.search_s:,.1f} searches a second at most"]
    if rates.scored_per_s:
        encoded = f", {rates.encoded_per_s:,.0f} encoded" if rates.encoded_per_s else ""
        lines.append(f"documents a second: {rates.scored_per_s:,.0f} scored{encoded}")
    if stored:
        file, side = (f"{stored[name] / 1e9:,.2f} GB" for name in ("file", "side_index"))
        room = f"OSRERANK_VECTORS_MB={2 * stored['file'] / 1e6:.0f}"
        lines.append(f"vectors: {file} in a file or Redis ({room}), or {side} in a side index")
    return lines
