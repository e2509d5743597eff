"""``osrerank rerank``: rerank candidates from a file, without a search engine."""

from contextlib import closing
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from osrerank.cli.batch import QueryBatch
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.candidates import CandidateLists, Texts
    from osrerank.search.plan import RerankArgument
    from osrerank.service import RerankService
    from osrerank.types import Query


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
        rerank_argument = build_rerank_argument({**options, "do_rerank": True})  # this command has no --no-rerank
        with open_index_texts(context, options["index"]) as read_texts:
            candidates = _read_candidates(options, read_texts)
        batch = create_batch(reranker, candidates, rerank_argument)
        run_batch(batch, options)


def create_batch(
    reranker: "RerankService", candidates: "CandidateLists", rerank_argument: "RerankArgument"
) -> "QueryBatch":
    """Return a batch that reranks each query's candidates. It also lets the reranker retry for minutes."""
    from osrerank.cli.batch import QueryBatch, allow_long_retries, resolve_ranking_options
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.candidates import CandidatesByQuery
    from osrerank.options.defaults import Defaults
    from osrerank.search.rerank_only import rerank_texts

    candidates_by_query = CandidatesByQuery(candidates)
    default_options = Defaults.load(reranker.settings).base

    def rerank_query(query: "Query", began_at_s: float) -> "QueryRecord":
        documents = candidates_by_query.get_documents(query.query_id)
        ranking = rerank_texts(reranker, default_options, query.text, documents, rerank=rerank_argument)
        return QueryRecord.from_ranking(query.query_id, ranking, began_at_s)

    ranking_options = {
        "candidates": candidates_by_query.digest,  # the command is resumed only with the same candidates
        **resolve_ranking_options(rerank_argument, default_options, reranker),
    }
    allow_long_retries(reranker)  # nobody waits for a single query
    return QueryBatch(candidates_by_query.queries, rerank_query, ranking_options, require_reranked=True)


def _read_candidates(options: dict[str, Any], read_texts: "Texts | None") -> "CandidateLists":
    """Return the candidate lists of ``--candidates``, or those of ``--run`` with its queries and documents.

    ``read_texts`` reads documents from ``--index``. Without this option, it is None.

    Raises:
        ConfigError: both or none of ``--candidates`` and ``--run`` are set, or ``--run`` lacks an option that it needs.
    """
    from osrerank.formats.candidates import assemble_candidates, candidate_lists

    run, queries = options["run"], options["queries"]
    corpora = [corpus for corpus in (options["corpus"], read_texts) if corpus]
    if options["candidates"] and not (run or queries or corpora):
        return candidate_lists(options["candidates"])
    if run and queries and len(corpora) == 1 and not options["candidates"]:
        return assemble_candidates(run, corpora[0], queries)
    reason = "pass either --candidates, or --run with --queries and one of --corpus and --index"
    raise ConfigError(reason, setting="candidates", source="flag")
