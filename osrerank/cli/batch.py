"""Search or rerank for many queries and write a run, for the commands ``run``, ``rerank`` and ``reproduce``.

As soon as a query is done, its record is written to the side file ``OUTPUT.jsonl``, so that an interrupted run can be
resumed.
"""

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

MAX_SHOWN_FAILURES = 10


@dataclass(frozen=True, slots=True)
class QueryBatch:
    """Queries, and the function that searches or reranks for each of them.

    Attributes:
        queries: the queries, in order.
        search: a function that takes a query and its start time, and returns a record. Several threads call it.
        ranking_options: the options that determine the rankings. A side file with other options is not resumed.
        require_reranked: whether a query fails if it was not completely reranked.
        workers: the number of threads.
    """

    queries: Sequence[Query]
    search: Callable[[Query, float], QueryRecord]
    ranking_options: Mapping[str, Any]
    require_reranked: bool
    workers: int = 1


def run_batch(batch: QueryBatch, options: Mapping[str, Any]) -> None:
    """Search for all queries that the side file does not contain yet, then write the run.

    If queries fail, the run is not written, or with ``skip_failed`` is written without them. The ``options`` are the
    values of the command-line options that `osrerank.cli.options.run_options` adds. Only ``output`` and
    ``allow_partial`` are required.

    Raises:
        EvaluationError: queries failed. They are listed on standard error.
    """
    output: Path = options["output"]
    allow_partial = options["allow_partial"]
    skip_failed = options.get("skip_failed", False)
    side_path = output.with_name(f"{output.name}.jsonl")
    ids = [query.query_id for query in batch.queries]
    with SideFile(side_path, {**batch.ranking_options, "queries": digest(batch.queries)}) as side_file:
        n_resumed = len(side_file)
        if n_resumed:
            click.echo(f"{side_path}: resuming after {n_resumed} of {len(ids)} queries", err=True)
        with progress(len(ids), n_resumed) as advance:
            failures = run_queries(
                batch.queries,
                batch.search,
                side_file,
                workers=batch.workers,
                require_reranked=batch.require_reranked,
                allow_partial=allow_partial,
                advance=advance,
            )
        n_partial = sum(record.is_partial for record in side_file.read_records(ids))
        if n_partial and not allow_partial:
            reason = f"{side_path} contains {n_partial} partly reranked queries from a run with --allow-partial"
            raise EvaluationError(f"{reason}: pass --allow-partial again, or delete the file")
        if not failures or skip_failed:
            tag = options.get("tag") or output.stem
            has_hits = _write_run(output, tag, options.get("run_format", "trec"), side_file, batch.queries)
            side_file.finish(ids)
            counts = f"{len(has_hits)} queries"
            if not all(has_hits):
                counts += f", {has_hits.count(False)} of them without hits"
            if n_partial:
                counts += f", {n_partial} of them only partly reranked"
            click.echo(f"{output}: {counts}; scores and timings in {side_path}", err=True)
    if failures:
        _print_failures(failures)
        counts = "1 query failed" if len(failures) == 1 else f"{len(failures)} queries failed"
        n_partly_failed = sum(failure.is_partial for failure in failures)
        if n_partly_failed:
            counts += f", {n_partly_failed} of them only partly reranked (--allow-partial keeps these)"
        outcome = f"{output} was written without them" if skip_failed else f"{output} was not written"
        raise EvaluationError(f"{counts}; {outcome}; run the same command again to retry the failed queries")


def _write_run(output: Path, tag: str, form: RunForm, side_file: SideFile, queries: Sequence[Query]) -> list[bool]:
    """Write the run. For each query, in order, return whether it has hits."""
    has_hits: list[bool] = []  # filled while the run is written

    def rankings() -> Iterator[tuple[str, tuple[ScoredDocument, ...]]]:
        for query_id, documents in read_rankings(side_file, queries):
            has_hits.append(bool(documents))
            yield query_id, documents

    write_rankings(output, tag, rankings(), form=form)
    return has_hits


def allow_long_retries(reranker: RerankService) -> None:
    """Let queries without a deadline retry for minutes if the rerank server is busy or does not respond."""
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
            reason = f"{output} is also an input: choose another output"
            raise ConfigError(reason, setting="output", source="argument")


def digest(queries: Sequence[Query]) -> str:
    """Return a digest of a query set's ids, texts and order: 16 hexadecimal digits."""
    content = "\n".join(f"{query.query_id}\t{query.text}" for query in queries)
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()[:16]


def resolve_ranking_options(argument: RerankArgument, defaults: Rerank, reranker: RerankService) -> dict[str, Any]:
    """Return what determines the rankings of a run, such as ``{"rerank": True, "rerank.depth": 100, "model": ...}``.

    This loads the models and adds what identifies their weights, because a model's name does not.
    """
    options = Rerank.of(argument, defaults)
    if options is None:  # a search without reranking
        return {"rerank": False, "rerank.query_fields": defaults.query_fields}
    settings = reranker.settings
    return {
        "rerank": True,
        **{f"rerank.{name}": value for name, value in asdict(options).items()},
        "rerank.deadline_ms": options.explicit_deadline_ms,  # commands have no automatic deadline
        "model": settings.model,
        "backend": settings.backend,
        **reranker.identity(options),
    }


@contextlib.contextmanager
def progress(total: int, n_resumed: int) -> Iterator[Callable[[], None]]:
    """Show progress as a bar in a terminal, or else as lines. Yield a function to call after each query.

    ``n_resumed`` of the ``total`` queries were finished by an earlier run.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from osrerank.cli.tables import console

    screen = console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bar:
        task = bar.add_task("queries", total=total, completed=n_resumed)
        lines = ProgressLines()
        finished_counts = itertools.count(1)

        def advance() -> None:
            bar.advance(task)
            lines.report(next(finished_counts), total - n_resumed, "queries")

        yield advance


def _print_failures(failures: Sequence[Failure]) -> None:
    for failure in failures[:MAX_SHOWN_FAILURES]:
        click.echo(f"query {failure.query_id}: {failure.reason}", err=True)
    if len(failures) > MAX_SHOWN_FAILURES:
        click.echo(f"... and {len(failures) - MAX_SHOWN_FAILURES} more", err=True)
