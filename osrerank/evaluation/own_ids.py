"""Count hits that are the query itself, in collections whose queries are documents, such as BEIR's ArguAna and Quora.

BEIR leaves such hits out. A query and a document may also share an id by chance, for instance if both are numbered from
1. Such documents are seldom among the best hits, so a few of them are ignored.
"""

from collections.abc import Mapping, Sequence

TOP = 10
MIN_SHARE = 0.05
"""The smallest share of queries with such a hit that is not put down to chance."""


def own_hits(rankings: Mapping[str, Sequence[str]]) -> int:
    """Return how many queries have a document with their own id among their ten best; 0 if so few may be chance.

    Args:
        rankings: query id -> document ids, best first.
    """
    count = sum(query_id in ranked[:TOP] for query_id, ranked in rankings.items())
    return count if count >= MIN_SHARE * len(rankings) else 0
