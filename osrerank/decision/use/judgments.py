"""From attraction to judgments: grades, with a minimum of evidence."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from osrerank.decision.use.click_models import Attraction, Learnt, Model, learn
from osrerank.decision.use.clicks import ShownPage, folded
from osrerank.errors import EvaluationError
from osrerank.types import Qrels, Query

GRADES = (0.25, 0.5, 0.75)
"""Shares of the query's best value from which a document has the grade 1, 2, 3."""
MADE = "use-"
"""Begins the ids of queries that were read from use."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is needed for a judgment.

    Attributes:
        impressions: of a document for a query, at least.
        sessions: that asked a query, at least: what one person alone typed is left out. Sessions of one client count
            as one, and so do all pages without a session, because they may be the same person's.
        clicks: on a query's pages, at least.
    """

    impressions: int = 10
    sessions: int = 3
    clicks: int = 1


@dataclass(frozen=True, slots=True)
class JudgmentList:
    """Queries and their judgments.

    Attributes:
        queries: those that have judgments.
        ratings: query id -> document id -> value; higher is better.
        left_out: queries, and pairs of the queries that stayed, without enough evidence.
        learnt: what they were made of; None where they come from elsewhere.
    """

    queries: tuple[Query, ...]
    ratings: Mapping[str, Mapping[str, float]]
    left_out: tuple[int, int] = (0, 0)
    learnt: Learnt | None = None

    def qrels(self) -> Qrels:
        """Return the judgments as grades: whole numbers as they are, others by their share of the query's best."""
        every = [value for one in self.ratings.values() for value in one.values()]
        if all(value == int(value) for value in every):
            return Qrels({key: {doc: int(value) for doc, value in one.items()} for key, one in self.ratings.items()})
        return Qrels({query_id: graded(one) for query_id, one in self.ratings.items()})


def graded(values: Mapping[str, float], grades: Sequence[float] = GRADES) -> dict[str, int]:
    """Return the grade of each document of a query: how many of the shares of the best value its own reaches."""
    best = max(values.values(), default=0.0)
    return {
        doc_id: sum(value >= share * best for share in grades) if best > 0 else 0 for doc_id, value in values.items()
    }


def judge(pages: Sequence[ShownPage], model: Model = "pbm", evidence: Evidence | None = None) -> JudgmentList:
    """Return judgments from use: for each query with enough evidence the values of its documents that have it too.

    Raises:
        EvaluationError: nothing can be learnt, or no query has enough evidence.
    """
    evidence = evidence or Evidence()
    learnt = learn(pages, model)
    by_query: defaultdict[str, list[Attraction]] = defaultdict(list)
    for one in learnt.attractions:
        by_query[one.query].append(one)
    texts, sessions = _asked(pages)
    queries: list[Query] = []
    ratings: dict[str, dict[str, float]] = {}
    thin = 0
    for query, found in by_query.items():
        enough = [one for one in found if one.impressions >= evidence.impressions]
        clicks = sum(one.clicks for one in found)
        if not enough or clicks < evidence.clicks or len(sessions[query]) < evidence.sessions:
            continue
        thin += len(found) - len(enough)
        query_id = f"{MADE}{len(queries) + 1}"
        queries.append(Query(query_id, texts[query]))
        ratings[query_id] = {one.doc_id: one.value for one in enough}
    if not queries:
        reason = f"no query of {len(by_query):,} has {evidence.impressions} impressions of a document"
        raise EvaluationError(f"{reason}, {evidence.clicks} clicks and {evidence.sessions} sessions: wait, or ask less")
    return JudgmentList(tuple(queries), ratings, (len(by_query) - len(queries), thin), learnt)


def _asked(pages: Iterable[ShownPage]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Return folded query -> its text as it was typed first, and -> the sessions that asked it."""
    texts: dict[str, str] = {}
    sessions: defaultdict[str, set[str]] = defaultdict(set)
    for page in pages:
        query = folded(page.query)
        texts.setdefault(query, " ".join(page.query.split()))
        sessions[query].add(page.client or page.session)
    return texts, sessions
