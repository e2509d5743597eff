"""Hits that are the query itself, in collections whose queries are documents: BEIR's ArguAna and Quora.

BEIR leaves such hits out. An id that a query and another document share by chance, as where both are numbered from 1,
is seldom among the best hits, so a few of them say nothing.
"""

from collections.abc import Mapping, Sequence

TOP = 10
LEAST_SHARE = 0.05
"""The share of the queries from which on it is no chance."""


def own_hits(rankings: Mapping[str, Sequence[str]]) -> int:
    """Return how many queries have a document with their own id among their ten best; 0 if it may be by chance.

    Args:
        rankings: query id -> document ids, best first.
    """
    count = sum(query_id in ranked[:TOP] for query_id, ranked in rankings.items())
    return count if count >= LEAST_SHARE * len(rankings) else 0
