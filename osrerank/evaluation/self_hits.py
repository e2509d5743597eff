"""Count self-hits: hits with the id of their query, in collections whose queries are documents, such as BEIR's ArguAna.

BEIR excludes self-hits from a run. In other collections, queries and documents can share ids by chance, for instance if
both are numbered from 1. Such documents are seldom among the top hits, so a low share of self-hits counts as chance.
"""

from collections.abc import Mapping, Sequence

MAX_RANK = 10
"""Self-hits below this rank are not counted."""
MIN_SHARE = 0.05
"""Self-hits count as chance if fewer than this share of the queries have one."""


def count_self_hits(rankings: Mapping[str, Sequence[str]]) -> int:
    """Return how many queries have a self-hit among their top ten, or 0 if so few can be chance.

    ``rankings`` has the document ids of each query, best first.
    """
    count = sum(query_id in doc_ids[:MAX_RANK] for query_id, doc_ids in rankings.items())
    return count if count >= MIN_SHARE * len(rankings) else 0
