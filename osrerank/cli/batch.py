"""Run a query set, for ``osrerank run`` and ``rerank``: show progress, write checkpoints and the run, list failures."""

import contextlib
import hashlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from osrerank._progress import ProgressLines
from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.batch import Failure, read_rankings, run_queries
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile
from osrerank.formats.trec import RunForm, write_rankings
from osrerank.options.rerank import Rerank
from osrerank.search.plan import RerankArgument
from osrerank.service import RerankService
from osrerank.types import Query, ScoredDocument
from osrerank.types.vectors import NeedsServer

SHOWN_FAILURES = 10


@dataclass(frozen=True, slots=True)
class QuerySetRun:
    """A query set and the search that each query runs.

    Attributes:
        queries: the queries, in order.
        search: a function that takes a query and its start time and returns its record; several threads call it.
        depends_on: the options that determine the rankings; a checkpoint with other options is refused.
        reranked: whether a query that is not completely reranked counts as failed.
        workers: the number of threads.
    """

    queries: Sequence[Query]
    search: Callable[[Query, float], QueryRecord]
    depends_on: Mapping[str, Any]
    reranked: bool
    workers: int = 1


def run_batch(
    batch: QuerySetRun, output: Path, *, tag: str, form: RunForm, skip_failed: bool, allow_partial: bool = False
) -> None:
    """Run the batch and write the run and its side file.

    Raises:
        EvaluationError: queries failed, or were reranked only in part without ``allow_partial``; stderr lists them.
    """
    side_file = output.with_name(f"{output.name}.jsonl")
    ids = [query.query_id for query in batch.queries]
    with SideFile(side_file, {**batch.depends_on, "queries": digest(batch.queries)}) as checkpoint:
        resumed = len(checkpoint)
        if resumed:
            click.echo(f"{side_file}: going on after {resumed} of {len(ids)} queries", err=True)
        with progress(len(ids), resumed) as advance:
            failures = run_queries(
                batch.queries,
                batch.search,
                checkpoint,
                workers=batch.workers,
                require_reranked=batch.reranked,
                allow_partial=allow_partial,
                advance=advance,
            )
        partial_before = sum(record.is_partial for record in checkpoint.records(ids))
        if partial_before and not allow_partial:
            reason = f"{side_file} has {partial_before} partly reranked queries from a run with --allow-partial"
            raise EvaluationError(f"{reason}: pass --allow-partial again, or delete the file")
        if not failures or skip_failed:
            have_hits = _write(output, tag, form, checkpoint, batch.queries)
            checkpoint.finish(ids)
            without_hits = f", {have_hits.count(False)} of them found nothing" if not all(have_hits) else ""
            partly = f", {partial_before} of them only partly reranked" if partial_before else ""
            click.echo(
                f"{output}: {len(have_hits)} queries{without_hits}{partly}; scores and timings in {side_file}", err=True
            )
    if failures:
        _list(failures)
        outcome = f"{output} was written without them" if skip_failed else f"{output} was not written"
        partial = sum(failure.is_partial for failure in failures)
        partly_failed = f", {partial} of them only partly reranked (--allow-partial keeps these)" if partial else ""
        raise EvaluationError(
            f"{len(failures)} queries failed{partly_failed}; {outcome}; run the same command to retry them"
        )


def _write(output: Path, tag: str, form: RunForm, checkpoint: SideFile, queries: Sequence[Query]) -> list[bool]:
    """Write the run; return for each of its queries, in order, whether it has any hits."""
    have_hits: list[bool] = []

    def rankings() -> Iterator[tuple[str, tuple[ScoredDocument, ...]]]:
        for query_id, documents in read_rankings(checkpoint, queries):
            have_hits.append(bool(documents))
            yield query_id, documents

    write_rankings(output, tag, rankings(), form=form)
    return have_hits


def wait_for_busy_server(reranker: RerankService) -> None:
    """Let queries without a deadline wait for minutes while a rerank server is busy or does not respond."""
    model = reranker.model
    if isinstance(model, NeedsServer):
        model.allow_long_retries()


def refuse_overwriting(output: Path, *inputs: Path | None) -> None:
    """Check that the output is not also an input.

    Raises:
        ConfigError: the output and an input are the same file.
    """
    for file in inputs:
        if file is not None and file.exists() and output.exists() and file.samefile(output):
            raise ConfigError(
                f"{output} is also an input; choose another output",
                setting="output",
                source="argument",
            )


def digest(queries: Sequence[Query]) -> str:
    """Return a digest of a query set's ids, texts and order: 16 hexadecimal digits."""
    content = "\n".join(f"{query.query_id}\t{query.text}" for query in queries)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


def ranking_options(arguments: RerankArgument, defaults: Rerank, reranker: RerankService) -> dict[str, Any]:
    """Return all options and settings that determine an order, by name, including those of the settings file.

    This loads the model, because another model may have the same name; its identity distinguishes them.
    """
    options = Rerank.of(arguments, defaults)
    if options is None:
        return {"rerank": False, "rerank.query_fields": defaults.query_fields}
    named = {f"rerank.{name}": value for name, value in asdict(options).items()}
    settings = reranker.settings
    return {
        "rerank": True,
        **named,
        "rerank.deadline_ms": options.explicit_deadline_ms,
        "model": settings.model,
        "backend": settings.backend,
        **reranker.identity(options),
    }


@contextlib.contextmanager
def progress(total: int, done: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each query; it shows the progress, as a bar on a terminal, else in lines."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from osrerank.cli.tables import console

    screen = console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("queries", total=total, completed=done)
        lines, finished = ProgressLines(), itertools.count(1)

        def advance() -> None:
            bar.advance(task)
            lines.report(next(finished), total - done, "queries")

        yield advance


def _list(failures: Sequence[Failure]) -> None:
    for failure in failures[:SHOWN_FAILURES]:
        click.echo(f"query {failure.query_id}: {failure.reason}", err=True)
    if len(failures) > SHOWN_FAILURES:
        click.echo(f"... and {len(failures) - SHOWN_FAILURES} more", err=True)
