"""``osrerank run``: search an index for every query of a file, and write the rankings as a run."""

from contextlib import closing
from typing import Any

import click

from osrerank.cli.options import INDEX, build_rerank_argument, open_client, rerank_options, run_options
from osrerank.cli.path_types import SOURCE

MAX_HITS = 10_000
"""The maximum number of hits that OpenSearch returns by default (index setting ``max_result_window``)."""


@click.command()
@click.option(
    "--queries",
    required=True,
    type=SOURCE,
    help="TSV, JSON lines, TREC or CACM topics, TREC-CAR's ids, a CSV with qid and query, or ir_datasets:NAME.",
)
@click.option("--index", "-i", type=INDEX, required=True, help="Index to search.")
@click.option("--hits", default=1000, show_default=True, type=click.IntRange(1, MAX_HITS), help="Hits per query.")
@click.option(
    "--exclude-query-ids",
    is_flag=True,
    help="Leave out the hit that has the query's id, as BEIR does if queries are documents (ArguAna, Quora).",
)
@run_options
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1, 64), help="Queries to search for at a time."
)
@rerank_options
@click.pass_context
def run(context: click.Context, /, **options: Any) -> None:
    """Search an index for each query of a file, and write a run.

    \b
    osrerank run --queries topics.tsv --index passages --output bm25.run --no-rerank
    osrerank run --queries topics.tsv --index passages --output rm3.run --no-rerank --rm3
    osrerank run --queries topics.tsv --index passages --output reranked.run --depth 1000 --workers 2
    osrerank run --queries topics.tsv --index passages --output duo.run --pipeline mono-duo --duo-depth 50

    The side file OUTPUT.jsonl contains the scores, inferences and timings of every stage. The same command resumes an
    interrupted run. If queries fail, or are reranked only in part, they are listed and the exit code is 1.
    """
    from osrerank.cli.batch import refuse_overwriting, run_batch

    refuse_overwriting(options["output"], options["queries"])
    with closing(open_client(context)) as client:
        batch = _create_batch(client, options)
        run_batch(batch, options)


def _create_batch(client: Any, cli_options: dict[str, Any]) -> Any:
    """Return the queries, the function that searches for one, and the options to record, as a `QueryBatch`."""
    from dataclasses import replace

    from osrerank.cli.batch import QueryBatch, allow_long_retries, resolve_ranking_options
    from osrerank.evaluation.records import QueryRecord
    from osrerank.formats.topics import read_queries
    from osrerank.options.rerank import NO_STAGES, Rerank

    index = cli_options["index"]
    n_hits = cli_options["hits"]
    exclude_query_ids = cli_options["exclude_query_ids"]
    size = min(n_hits + 1, MAX_HITS) if exclude_query_ids else n_hits  # one more, because one can be left out
    rerank: Any = build_rerank_argument(cli_options)
    options = Rerank.of(rerank, client.searcher.defaults.options_for(index))  # None if reranking is off
    is_reranked = options is not None and options.pipeline != NO_STAGES
    search_arguments: dict[str, Any] = {"rerank": rerank}
    if options is not None and options.compares_pairs:
        search_arguments["rerank"] = replace(options, explain=True)  # adds the pairs to the side file
    if not is_reranked:
        search_arguments["_source"] = False  # without reranking, ids and scores are enough

    def search(query: Any, began_at_s: float) -> Any:
        response = client.search(query.text, index=index, size=size, **search_arguments)
        record = QueryRecord.from_response(query.query_id, response, began_at_s)
        return record.remove_document(query.query_id, n_hits) if exclude_query_ids else record

    options_with_fields = client.options_of(index, rerank=rerank)
    # Without reranking, it does not matter if the indices of an alias or a pattern have different models.
    with client.searcher.service_for(index, allow_mixed_models=not is_reranked) as service:
        recorded_rerank = False if rerank is False else options_with_fields
        model_options = resolve_ranking_options(recorded_rerank, options_with_fields, service)
        if is_reranked:
            allow_long_retries(service)  # a long run had better wait for a busy rerank server than fail
    # The side file's first line records these options. A run is resumed only if they are the same.
    ranking_options = {"index": index, "hits": n_hits, **_identify_index(client, index), **model_options}
    if exclude_query_ids:
        ranking_options["exclude_query_ids"] = True
    return QueryBatch(
        queries=read_queries(cli_options["queries"]),
        search=search,
        ranking_options=ranking_options,
        require_reranked=is_reranked,
        workers=cli_options["workers"],
    )


def _identify_index(client: Any, index: str) -> dict[str, Any]:
    """Return the engine's URLs and the index's uuids, so that a run of another index is not resumed.

    The result is such as ``{"url": ["https://host:9200"], "uuids": {"articles": "xJ2..."}}``. The URLs contain no
    credentials. ``uuids`` is None if the user is not allowed to read them.
    """
    from urllib.parse import urlsplit

    from opensearchpy.exceptions import TransportError

    addresses = client.searcher.service.settings.url.get_secret_value().split(",")
    parts = [urlsplit(address.strip()) for address in addresses]
    urls = [part._replace(netloc=part.netloc.rpartition("@")[2]).geturl() for part in parts]
    try:
        indices = client.indices.get(index=index)
    except TransportError:
        return {"url": urls, "uuids": None}
    uuids = {name: index_info["settings"]["index"].get("uuid") for name, index_info in sorted(indices.items())}
    return {"url": urls, "uuids": uuids}
