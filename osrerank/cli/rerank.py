"""``osrerank rerank``: rerank candidates from a file, without a search engine."""

from pathlib import Path
from typing import Any

import click

from osrerank.cli.index_texts import open_index_texts
from osrerank.cli.options import MODEL_SETTINGS, RANKING, allow_partial, rerank_arguments, run_form, search_options
from osrerank.cli.sources import SOURCE
from osrerank.errors import ConfigError


@click.command()
@click.option(
    "--candidates",
    type=SOURCE,
    help="JSON lines (osrerank's or rank_llm's), PyTerrier's CSV with texts, or ir_datasets:NAME.",
)
@click.option("--run", type=SOURCE, help="TREC or MS MARCO run to rerank, with --queries and --corpus or --index.")
@click.option("--corpus", type=SOURCE, help="Texts for --run: JSON lines with id, title and text.")
@click.option("--index", help="Texts for --run: an index with its documents.")
@click.option("--queries", type=SOURCE, help="Queries of --run.")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Run to write.")
@run_form
@click.option("--tag", help="The run's tag.  [default: the output's name]")
@click.option("--skip-failed", is_flag=True, help="Write the run without the queries that failed.")
@allow_partial
@search_options(*RANKING, "deadline_ms")
@click.pass_context
def rerank(context: click.Context, /, **options: Any) -> None:
    """Rerank candidates from a file and write a run.

    \b
    osrerank rerank --candidates candidates.jsonl --output reranked.run
    osrerank rerank --candidates candidates.jsonl --output duo.run --pipeline mono-duo --duo-depth 50
    osrerank rerank --run bm25.run --corpus corpus.jsonl --queries queries.tsv --output reranked.run
    osrerank rerank --run bm25.run --index passages --queries queries.tsv --output reranked.run

    The side file OUTPUT.jsonl has scores, inferences and timings. The same command resumes an interrupted run.
    """
    from osrerank.cli.batch import refuse_overwriting, run_batch
    from osrerank.service import RerankService
    from osrerank.settings import Settings

    refuse_overwriting(options["output"], *(options[name] for name in ("candidates", "run", "corpus", "queries")))
    reranker = RerankService(Settings.load(**{name: context.obj[name] for name in MODEL_SETTINGS}))
    try:
        arguments = rerank_arguments({**options, "do_rerank": True})
        with open_index_texts(context, options["index"]) as texts:
            candidates = _read({**options, "corpus": options["corpus"] or texts})
        batch = create_batch(reranker, candidates, arguments)
        run_batch(
            batch,
            options["output"],
            tag=options["tag"] or options["output"].stem,
            form=options["form"],
            skip_failed=options["skip_failed"],
            allow_partial=options["allow_partial"],
        )
    finally:
        reranker.close()


def create_batch(reranker: Any, candidates: Any, arguments: Any) -> Any:
    """Return the queries of candidate lists, with the function that reranks each.

    Args:
        reranker: the service with the models.
        candidates: the candidate lists that `formats.candidates` reads.
        arguments: the ranking options of the command line.
    """
    from osrerank.cli.batch import QuerySetRun, ranking_options, wait_for_busy_server
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.candidates import CandidatesByQuery
    from osrerank.options.defaults import Defaults
    from osrerank.search.ranking import rank_texts

    by_query = CandidatesByQuery(candidates)
    defaults = Defaults.load(reranker.settings).base

    def search(query: Any, started_s: float) -> Any:
        ranking = rank_texts(reranker, defaults, query.text, by_query.documents(query.query_id), rerank=arguments)
        return QueryRecord.from_ranking(query.query_id, ranking, started_s)

    depends_on = {"candidates": by_query.digest, **ranking_options(arguments, defaults, reranker)}
    wait_for_busy_server(reranker)
    return QuerySetRun(by_query.queries, search, depends_on, reranked=True)


def _read(options: dict[str, Any]) -> Any:
    from osrerank.formats.candidates import assemble, candidate_lists

    parts_of_run = [options["run"], options["corpus"], options["queries"]]
    has_one_corpus = options["index"] is None or not isinstance(options["corpus"], Path)
    if options["candidates"] and not any(parts_of_run):
        return candidate_lists(options["candidates"])
    if all(parts_of_run) and not options["candidates"] and has_one_corpus:
        return assemble(*parts_of_run)
    reason = "pass either --candidates, or --run with --queries and one of --corpus and --index"
    raise ConfigError(reason, setting="candidates", source="flag")
