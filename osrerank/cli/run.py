"""``osrerank run``: search an index for a query set and write a run."""

from pathlib import Path
from typing import Any

import click

from osrerank.cli.options import allow_partial, open_client, rerank_arguments, rerank_options, run_form
from osrerank.cli.sources import SOURCE

MAX_HITS = 10_000
"""Maximum number of hits of a search by default: the default of the index setting max_result_window."""


@click.command()
@click.option(
    "--queries",
    required=True,
    type=SOURCE,
    help="TSV, JSON lines, TREC or CACM topics, TREC-CAR's ids, a CSV with qid and query, or ir_datasets:NAME.",
)
@click.option("--index", "-i", required=True, help="Index to search.")
@click.option("--output", "-o", required=True, type=click.Path(dir_okay=False, path_type=Path), help="Run to write.")
@click.option("--hits", default=1000, show_default=True, type=click.IntRange(1, MAX_HITS), help="Hits per query.")
@click.option(
    "--exclude-query-ids",
    is_flag=True,
    help="Leave out the hit that has the query's id, as BEIR does if queries are documents (ArguAna, Quora).",
)
@run_form
@click.option("--tag", help="The run's tag.  [default: the output's name]")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Queries at a time.")
@click.option("--skip-failed", is_flag=True, help="Write the run without the queries that failed.")
@allow_partial
@rerank_options
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Search for each query of a query set and write a run, reranked or of the first pass only.

    \b
    osrerank run --queries topics.tsv --index passages --output bm25.run --no-rerank
    osrerank run --queries topics.tsv --index passages --output rm3.run --no-rerank --rm3
    osrerank run --queries topics.tsv --index passages --output reranked.run --depth 1000 --workers 2
    osrerank run --queries topics.tsv --index passages --output duo.run --pipeline mono-duo --duo-depth 50

    The side file OUTPUT.jsonl has the scores, inferences and timings of every stage. The same command resumes an
    interrupted run. If queries fail, or are reranked only in part, they are listed and the exit code is 1.
    """
    from osrerank.cli.batch import refuse_overwriting, run_batch

    refuse_overwriting(options["output"], options["queries"])
    client = open_client(context)
    try:
        batch = _batch(client, options)
        run_batch(
            batch,
            options["output"],
            tag=options["tag"] or options["output"].stem,
            form=options["form"],
            skip_failed=options["skip_failed"],
            allow_partial=options["allow_partial"],
        )
    finally:
        client.close()


def _batch(client: Any, options: dict[str, Any]) -> Any:
    """Return the query set, with the function that searches for each query."""
    from dataclasses import replace

    from osrerank.cli.batch import QuerySetRun, ranking_options, wait_for_busy_server
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.topics import read_queries
    from osrerank.options.rerank import NO_STAGES, Rerank

    arguments = rerank_arguments(options)
    rerank = Rerank.of(arguments, client.searcher.defaults.options_for(options["index"]))
    reranked = rerank is not None and rerank.pipeline != NO_STAGES
    rerank_argument: Any = arguments
    if rerank is not None and rerank.compares_pairs:
        rerank_argument = replace(rerank, explain=True)  # so that the side file has the pairs
    size, index, exclude = options["hits"], options["index"], options["exclude_query_ids"]
    n_hits = min(size + exclude, MAX_HITS)
    source = {} if reranked else {"_source": False}  # a first pass needs only ids and scores

    def search(query: Any, started_s: float) -> Any:
        response = client.search(query.text, index=index, size=n_hits, rerank=rerank_argument, **source)
        record = QueryRecord.from_response(query.query_id, response, started_s)
        return record.remove_document(query.query_id, size) if exclude else record

    named = client.options_of(index, rerank=arguments)
    with client.searcher.serving(index, checked=reranked) as service:
        order = ranking_options(arguments and named, named, service)
        if reranked:
            wait_for_busy_server(service)
    depends_on = {"index": index, "hits": size, **_origin(client, index), **order}
    if exclude:
        depends_on["exclude_query_ids"] = True
    return QuerySetRun(read_queries(options["queries"]), search, depends_on, reranked, options["workers"])


def _origin(client: Any, index: str) -> dict[str, Any]:
    """Return where the hits come from: the URL without credentials, and each index's uuid if it can be read."""
    from urllib.parse import urlsplit

    from opensearchpy.exceptions import TransportError

    parts = [urlsplit(part.strip()) for part in client.searcher.service.settings.url.get_secret_value().split(",")]
    urls = [part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts]
    try:
        indices = client.indices.get(index=index)
    except TransportError:  # no such index, or no permission: the searches report it, or need none
        return {"url": urls, "uuids": None}
    uuids = {name: index_info["settings"]["index"].get("uuid") for name, index_info in sorted(indices.items())}
    return {"url": urls, "uuids": uuids}
