"""``osrerank run``: search an index for a query set and write a run."""

from typing import Any

import click

from osrerank.cli.options import open_client, rerank_arguments, rerank_options, run_options
from osrerank.cli.path_types import SOURCE

MAX_HITS = 10_000
"""The default of the index setting ``max_result_window``."""


@click.command()
@click.option(
    "--queries",
    required=True,
    type=SOURCE,
    help="TSV, JSON lines, TREC or CACM topics, TREC-CAR's ids, a CSV with qid and query, or ir_datasets:NAME.",
)
@click.option("--index", "-i", required=True, help="Index to search.")
@click.option("--hits", default=1000, show_default=True, type=click.IntRange(1, MAX_HITS), help="Hits per query.")
@click.option(
    "--exclude-query-ids",
    is_flag=True,
    help="Leave out the hit that has the query's id, as BEIR does if queries are documents (ArguAna, Quora).",
)
@run_options
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Queries at a time.")
@rerank_options
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Search for each query of a query set, and write a run.

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
        batch = _create_batch(client, options)
        run_batch(batch, options)
    finally:
        client.close()


def _create_batch(client: Any, options: dict[str, Any]) -> Any:
    """Return the query set with its search, as a `QuerySetRun`."""
    from dataclasses import replace

    from osrerank.cli.batch import QuerySetRun, resolve_ranking_options, wait_for_busy_server
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.topics import read_queries
    from osrerank.options.rerank import NO_STAGES, Rerank

    arguments = rerank_arguments(options)
    rerank = Rerank.of(arguments, client.searcher.defaults.options_for(options["index"]))
    reranked = rerank is not None and rerank.pipeline != NO_STAGES
    rerank_argument: Any = arguments
    if rerank is not None and rerank.compares_pairs:
        rerank_argument = replace(rerank, explain=True)  # so that the side file has the pairs
    index = options["index"]
    n_hits = options["hits"]
    exclude = options["exclude_query_ids"]
    size = min(n_hits + exclude, MAX_HITS)
    source = {} if reranked else {"_source": False}  # a first pass needs only ids and scores

    def search(query: Any, started_s: float) -> Any:
        response = client.search(query.text, index=index, size=size, rerank=rerank_argument, **source)
        record = QueryRecord.from_response(query.query_id, response, started_s)
        return record.remove_document(query.query_id, n_hits) if exclude else record

    index_options = client.options_of(index, rerank=arguments)
    with client.searcher.serving(index, checked=reranked) as service:
        ranking_options = resolve_ranking_options(index_options if arguments else arguments, index_options, service)
        if reranked:
            wait_for_busy_server(service)
    ranking_options = {"index": index, "hits": n_hits, **_identify_index(client, index), **ranking_options}
    if exclude:
        ranking_options["exclude_query_ids"] = True
    return QuerySetRun(read_queries(options["queries"]), search, ranking_options, reranked, options["workers"])


def _identify_index(client: Any, index: str) -> dict[str, Any]:
    """Return the URLs of the cluster, without credentials, and the uuids of the indices, if they can be read."""
    from urllib.parse import urlsplit

    from opensearchpy.exceptions import TransportError

    addresses = client.searcher.service.settings.url.get_secret_value().split(",")
    parts = [urlsplit(address.strip()) for address in addresses]
    urls = [part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts]
    try:
        indices = client.indices.get(index=index)
    except TransportError:  # without permission, searches may still work; other errors they report themselves
        return {"url": urls, "uuids": None}
    uuids = {name: index_info["settings"]["index"].get("uuid") for name, index_info in sorted(indices.items())}
    return {"url": urls, "uuids": uuids}
