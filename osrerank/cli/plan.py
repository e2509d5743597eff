"""``osrerank plan``: how many workers, how much Redis and how much disk does a load need?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import DURATION, MODEL_SETTINGS, wants_json
from osrerank.errors import ConfigError
from osrerank.options.rerank import MAX_DEPTH

if TYPE_CHECKING:
    from osrerank.bench.workload import Task
    from osrerank.decision.capacity.plan import Wanted
    from osrerank.decision.capacity.rates import Rates
    from osrerank.settings import Settings

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
OUTPUT = click.Path(dir_okay=False, path_type=Path)
POSITIVE = click.FloatRange(0, min_open=True)
DOCUMENT_WORDS, QUERY_WORDS, VARIATION = 60, 6, 0.2
TASKS = 8
"""Queries whose documents are scored."""
CHARACTERS = 6.0
"""Of a word and the space after it, about."""


class MedianAnd95(click.ParamType[tuple[float, float]]):
    """Milliseconds: the median and the 95th percentile, or one number for both."""

    name = "MEDIAN/P95"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, float]:
        """Read the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            median, high = (float(part) for part in (value.split("/") if "/" in value else (value, value)))
        except ValueError:
            self.fail(f"{value!r} is not MEDIAN/P95 in milliseconds, such as 6/12", param, ctx)
        if not 0 < median <= high < 1e7:
            self.fail(f"{value!r}: the 95th percentile is not above the median, or one is no time", param, ctx)
        return median, high


@click.command()
@click.option("--searches-per-s", required=True, type=POSITIVE, help="Searches a second, on average.")
@click.option("--depth", default=100, show_default=True, type=click.IntRange(1, MAX_DEPTH), help="Candidates reranked.")
@click.option("--p95-ms", default=300.0, show_default=True, type=DURATION, help="Limit of a search's 95th percentile.")
@click.option("--documents", type=click.IntRange(1), help="In the collection: for what states and vectors take.")
@click.option(
    "--document-words", type=click.IntRange(1), help=f"Mean words of invented documents.  [default: {DOCUMENT_WORDS}]"
)
@click.option("--query-words", type=click.IntRange(1), help=f"Words of a query.  [default: {QUERY_WORDS}]")
@click.option("--candidates", type=FILE, help="Real texts to measure with, as of `osrerank rerank`.")
@click.option("--budget-s", default=20.0, show_default=True, type=DURATION, help="Time for measuring, about.")
@click.option("--threads", type=click.IntRange(0), help="CPU threads of a worker.  [default: the usable cores]")
@click.option("--save-rates", type=OUTPUT, help="File to write what was measured to, for --rates.")
@click.option("--rates", "rates_file", type=FILE, help="What --save-rates wrote: nothing is measured.")
@click.option("--pairs-per-s", type=POSITIVE, help="Of a worker, given: nothing is measured.")
@click.option("--variation", type=click.FloatRange(0, 5), help="Of chunks' times, with --pairs-per-s.  [default: 0.2]")
@click.option("--gpu-pairs-per-s", type=POSITIVE, help="Of a GPU, measured elsewhere.")
@click.option(
    "--cache-hit-rate",
    "hit_rate",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="Share of the searches whose scores are all cached.",
)
@click.option(
    "--states-share",
    "known",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of the candidates that have states.",
)
@click.option(
    "--first-pass-ms", default="6/12", show_default=True, type=MedianAnd95(), help="The first pass: median/p95."
)
@click.option(
    "--overhead-ms",
    default=6.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Of a search besides: transport, merging.",
)
@click.option(
    "--burstiness",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 5),
    help="Coefficient of variation of the times between searches; 1: Poisson.",
)
@click.option("--clients", default=1, show_default=True, type=click.IntRange(1), help="Processes that search.")
@click.option("--seed", default=0, show_default=True, help="Of the simulation.")
@click.pass_context
def plan(context: click.Context, /, **options: Any) -> None:
    """Say how many workers, cores or GPUs, how much Redis and disk a load needs.

    \b
    osrerank plan --searches-per-s 40 --depth 100 --documents 8800000 --save-rates rates.json
    osrerank plan --searches-per-s 80 --rates rates.json --cache-hit-rate .3
    osrerank plan --searches-per-s 40 --pairs-per-s 250 --threads 4 --gpu-pairs-per-s 20000

    The model is measured on this machine, or with --backend workers on the one worker that is there. A simulation of
    the workers' queue then says how many of them keep the 95th percentile of a search within --p95-ms, at most four
    fifths busy, and what other loads and numbers would give.
    """
    from osrerank.decision.capacity.plan import make_plan  # noqa: PLC0415 - numpy
    from osrerank.decision.capacity.words import as_json, lines  # noqa: PLC0415 - likewise

    settings = _settings(context.obj, options)
    made = make_plan(_wanted(options), _rates(settings, options), settings)
    if wants_json(context):
        click.echo(json.dumps(as_json(made)))
        return
    click.echo("\n".join(lines(made)))


def _settings(given: dict[str, Any], options: dict[str, Any]) -> "Settings":
    from osrerank.settings import Settings  # noqa: PLC0415 - pydantic

    return Settings.load(**{name: given[name] for name in MODEL_SETTINGS}, threads=options["threads"])


def _wanted(options: dict[str, Any]) -> "Wanted":
    from osrerank.decision.capacity.plan import Wanted  # noqa: PLC0415 - see plan
    from osrerank.decision.capacity.predict import Traffic  # noqa: PLC0415 - likewise

    names = ("searches_per_s", "depth", "hit_rate", "burstiness", "first_pass_ms", "overhead_ms", "known")
    traffic = Traffic(**{name: options[name] for name in names})
    return Wanted(
        traffic, **{name: options[name] for name in ("p95_ms", "documents", "clients", "gpu_pairs_per_s", "seed")}
    )


def _rates(settings: "Settings", options: dict[str, Any]) -> "Rates":
    """Return what is known of a worker: read, given, or measured now."""
    _check_source(options)
    if options["rates_file"]:
        from osrerank.decision.capacity.rates import read_rates  # noqa: PLC0415 - see plan

        return read_rates(options["rates_file"])
    if options["pairs_per_s"]:
        return _given(settings, options)
    from osrerank.decision.capacity.here import measure_rates  # noqa: PLC0415 - see plan

    measured = measure_rates(settings, _tasks(options), options["depth"], budget_s=options["budget_s"])
    if options["save_rates"]:
        measured.write(options["save_rates"])
    return measured


def _check_source(options: dict[str, Any]) -> None:
    """Refuse options that another one leaves without effect.

    Raises:
        ConfigError: naming both.
    """
    texts = ("document_words", "query_words", "candidates")
    without = {
        "rates_file": (*texts, "pairs_per_s", "variation", "save_rates", "threads"),
        "pairs_per_s": ("query_words", "candidates", "save_rates"),
        "candidates": ("document_words", "query_words"),
    }
    for source, others in without.items():
        for other in others:
            if options[source] is not None and options[other] is not None:
                named = "--rates" if source == "rates_file" else _flag(source)
                reason = f"{_flag(other)} has no effect with {named}: leave one of them out"
                raise ConfigError(reason, setting=other, source="flag")
    if options["variation"] is not None and options["pairs_per_s"] is None:
        reason = "--variation has no effect without --pairs-per-s: it is measured"
        raise ConfigError(reason, setting="variation", source="flag")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _given(settings: "Settings", options: dict[str, Any]) -> "Rates":
    """Return the rates of a worker whose pairs a second are given."""
    from osrerank.decision.capacity.here import SINGLE_TASKS  # noqa: PLC0415 - see plan
    from osrerank.decision.capacity.rates import Rate, Rates  # noqa: PLC0415 - likewise

    words = options["document_words"] or DOCUMENT_WORDS
    variation = VARIATION if options["variation"] is None else options["variation"]
    whole = Rate.given(options["pairs_per_s"], variation=variation, tasks=settings.worker_tasks or SINGLE_TASKS)
    return Rates(settings.model, settings.threads, words, QUERY_WORDS, words * CHARACTERS, whole)


def _tasks(options: dict[str, Any]) -> "list[Task]":
    """Return the texts to measure with.

    Raises:
        ConfigError: the file has none.
    """
    from osrerank.bench.workload import from_candidates, synthetic  # noqa: PLC0415 - see plan

    if options["candidates"] is None:
        words, of_query = options["document_words"] or DOCUMENT_WORDS, options["query_words"] or QUERY_WORDS
        return synthetic(words, queries=TASKS, depth=options["depth"], query_words=of_query)
    found = from_candidates(options["candidates"], queries=TASKS, depth=options["depth"])
    tasks = [one for one in found if one.documents]
    if not tasks:
        reason = f"--candidates: {options['candidates']} has no query with documents"
        raise ConfigError(reason, setting="candidates", source="flag")
    return tasks
