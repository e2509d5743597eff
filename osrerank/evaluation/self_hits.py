"""Count *self-hits*: hits with the id of their query, in collections whose queries are documents.

An example is ArguAna, for which BEIR removes self-hits from runs. In other collections, queries and documents can have
equal ids by chance, for instance if both are numbered from 1. They are then seldom among the top hits, so a few
self-hits are taken for chance.
"""

from collections.abc import Mapping, Sequence

MAX_RANK = 10
"""The number of top hits that are searched for a self-hit."""
MIN_SHARE = 0.05
"""The fraction of queries with a self-hit below which self-hits are taken for chance."""


def count_self_hits(rankings: Mapping[str, Sequence[str]]) -> int:
    """Return how many queries have a self-hit among their top ten hits, or 0 if these are below 5% of the queries.

    ``rankings`` has the document ids of each query, best first: ``{"q1": ["d3", "d7"]}``.
    """
    count = sum(query_id in doc_ids[:MAX_RANK] for query_id, doc_ids in rankings.items())
    return count if count >= MIN_SHARE * len(rankings) else 0
