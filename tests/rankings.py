"""Rankings and responses for tests, and clients that get them."""

from collections.abc import Sequence
from typing import Any

from osrerank import Rerank, connect
from osrerank.response import FIRST_PASS, Page, squash
from osrerank.search.outcome import make_report
from osrerank.search.plan import Plan, SearchCall
from osrerank.search.report import write_report
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import CannedTransport, FunctionScorer
from osrerank.types import Candidate, Query, Ranking, StageScore
from osrerank.types.reasons import Reason

BY_LENGTH = FunctionScorer(lambda _query, text: float(len(text)))


def ranking_of(texts: Sequence[str | None], query: str = "low blood pressure") -> Ranking:
    """A first pass of texts, in order, with falling scores and the ids d0, d1, ..."""
    candidates = []
    for rank, text in enumerate(texts, start=1):
        score = float(len(texts) - rank + 1)
        trace = (StageScore(FIRST_PASS, score, rank, squash(score)),)
        candidates.append(Candidate(f"d{rank - 1}", text, score, rank, trace))
    return Ranking(Query("q", query), tuple(candidates))


def response_of(texts: Sequence[str], **extra: Any) -> dict[str, Any]:
    """A search response with those texts in the field `text`, in order."""
    hits = [
        {"_index": "notes", "_id": f"d{index}", "_score": float(len(texts) - index), "_source": {"text": text}}
        for index, text in enumerate(texts)
    ]
    total = {"value": len(texts), "relation": "eq"}
    return {
        "took": 3,
        "timed_out": False,
        "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
        "hits": {"total": total, "max_score": float(len(texts)) if texts else None, "hits": hits},
        **extra,
    }


def client_for(answer: Any, scorer: Any = BY_LENGTH, **options: Any) -> Any:
    """A client that gets one answer to everything: a response, or that of texts."""
    answer = response_of(answer) if isinstance(answer, list) else answer
    return connect(
        "http://localhost:9", scorer=scorer, **{"transport_class": CannedTransport, "answer": answer, **options}
    )


def answer_of(
    response: Any, outcome: Ranking | Reason, page: Page | None = None, rerank_ms: float = 0.0
) -> dict[str, Any]:
    """The answer of a search whose hits were ranked so, or not for a reason."""
    page = page or Page()
    options = Rerank(explain=page.explain)
    service = RerankService(Settings.load(), BY_LENGTH)
    plan = Plan(SearchCall(options=options), service, options=options, page=page)
    return write_report(response, make_report(response, outcome, plan, rerank_ms=rerank_ms))


def asked(client: Any) -> dict[str, Any]:
    """The last request that a client of canned answers has sent."""
    return client.transport.requests[-1]  # type: ignore[no-any-return]


def unmarked(response: Any) -> dict[str, Any]:
    """The part `hits` of a response, without `_rerank` in its hits."""
    hits = response["hits"]
    return {**hits, "hits": [{name: hit[name] for name in hit if name != "_rerank"} for hit in hits["hits"]]}


def ids(response: Any) -> list[str]:
    """The ids of a response's hits, in order."""
    return [hit["_id"] for hit in response["hits"]["hits"]]
