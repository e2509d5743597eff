"""``osrerank rerank``: rerank candidates from a file, without a search engine."""

from contextlib import closing
from typing import Any

import click

from osrerank.cli.index_texts import open_index_texts
from osrerank.cli.options import (
    INDEX,
    RANKING_OPTIONS,
    build_rerank_argument,
    open_reranker,
    run_options,
    search_options,
)
from osrerank.cli.path_types import SOURCE
from osrerank.errors import ConfigError


@click.command()
@click.option(
    "--candidates",
    type=SOURCE,
    help="JSON lines (osrerank's or rank_llm's), PyTerrier's CSV with texts, or ir_datasets:NAME.",
)
@click.option("--run", type=SOURCE, help="TREC or MS MARCO run to rerank, with --queries and --corpus or --index.")
@click.option("--corpus", type=SOURCE, help="Documents of --run, as JSON lines with id, title and text.")
@click.option("--index", type=INDEX, help="Index with the documents of --run.")
@click.option("--queries", type=SOURCE, help="Queries of --run.")
@run_options
@search_options(*RANKING_OPTIONS, "deadline_ms")
@click.pass_context
def rerank(context: click.Context, /, **options: Any) -> None:
    """Rerank candidates from a file and write a run.

    \b
    osrerank rerank --candidates candidates.jsonl --output reranked.run
    osrerank rerank --candidates candidates.jsonl --output duo.run --pipeline mono-duo --duo-depth 50
    osrerank rerank --run bm25.run --corpus corpus.jsonl --queries queries.tsv --output reranked.run
    osrerank rerank --run bm25.run --index passages --queries queries.tsv --output reranked.run

    The side file OUTPUT.jsonl contains scores, inferences and timings. The same command resumes an interrupted run.
    """
    from osrerank.cli.batch import refuse_overwriting, run_batch

    refuse_overwriting(options["output"], *(options[name] for name in ("candidates", "run", "corpus", "queries")))
    with closing(open_reranker(context)) as reranker:
        rerank_argument = build_rerank_argument({**options, "do_rerank": True})
        with open_index_texts(context, options["index"]) as read_texts:
            candidates = _read_candidates(options, read_texts)
        batch = create_batch(reranker, candidates, rerank_argument)
        run_batch(batch, options)


def create_batch(reranker: Any, candidates: Any, rerank_argument: Any) -> Any:
    """Return the `osrerank.cli.batch.QueryBatch` that reranks each query's candidates."""
    from osrerank.cli.batch import QueryBatch, allow_long_retries, resolve_ranking_options
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.candidates import CandidatesByQuery
    from osrerank.options.defaults import Defaults
    from osrerank.search.rerank_only import rerank_texts

    query_set = CandidatesByQuery(candidates)
    defaults = Defaults.load(reranker.settings).base

    def rerank_query(query: Any, began_s: float) -> Any:
        documents = query_set.get_documents(query.query_id)
        ranking = rerank_texts(reranker, defaults, query.text, documents, rerank=rerank_argument)
        return QueryRecord.from_ranking(query.query_id, ranking, began_s)

    ranking_options = {
        "candidates": query_set.digest,  # a run is resumed only with the same candidates
        **resolve_ranking_options(rerank_argument, defaults, reranker),
    }
    allow_long_retries(reranker)
    return QueryBatch(query_set.queries, rerank_query, ranking_options, require_reranked=True)


def _read_candidates(options: dict[str, Any], read_texts: Any) -> Any:
    """Return the candidate lists of ``--candidates``, or those of ``--run`` with its queries and documents.

    ``read_texts`` reads documents from ``--index``. It is None without this option.

    Raises:
        ConfigError: both or none of ``--candidates`` and ``--run`` are set, or ``--run`` lacks an option that it needs.
    """
    from osrerank.formats.candidates import assemble_candidates, candidate_lists

    run_inputs = [options["run"], options["corpus"] or read_texts, options["queries"]]
    has_two_corpora = bool(options["corpus"] and read_texts)
    if options["candidates"] and not any(run_inputs):
        return candidate_lists(options["candidates"])
    if all(run_inputs) and not options["candidates"] and not has_two_corpora:
        return assemble_candidates(*run_inputs)
    reason = "pass either --candidates, or --run with --queries and one of --corpus and --index"
    raise ConfigError(reason, setting="candidates", source="flag")
