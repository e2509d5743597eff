"""Interleave two rankings on one page, so that clicks show which ranking users prefer.

The rankings are called teams. Team A is the ranking by the search's options, and team B is the ranking by the options
``interleave.with``. In each round, a coin decides which team picks first. Each team then picks its best hit that is not
on the list yet. This is team-draft interleaving: Radlinski, Kurup, Joachims: How does clickthrough data reflect
retrieval quality?, CIKM 2008, section 4.
"""

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from osrerank.options.interleave import Interleave
from osrerank.options.rerank import NO_STAGES, Rerank
from osrerank.pipeline import describe_failures, find_applied
from osrerank.response import Page, make_candidate_ids, merge_hit
from osrerank.types import Candidate, Ranking, StageReport
from osrerank.types.reasons import SearchWarning

logger = logging.getLogger(__name__)

Team = Literal["A", "B"]
TEAM_A: Team = "A"
TEAM_B: Team = "B"


class Pick(NamedTuple):
    """A document on the interleaved list, and the team that picked it. A click on the document counts for that team."""

    doc_id: str
    team: Team


def team_draft(ids_a: Sequence[str], ids_b: Sequence[str], seed: str) -> list[Pick]:
    """Interleave two rankings of document ids into one list without duplicates. The same seed gives the same list.

    For example, ``["1", "2"]`` and ``["1", "3"]`` become 1, 3, 2 if team A picks first in the first round. If the
    rankings get longer, the beginning of the list stays the same, so pages do not overlap.
    """
    coin = random.Random(seed.encode("utf-8", "surrogatepass"))  # noqa: S311 - a repeatable draw, no secret
    remaining = {TEAM_A: iter(ids_a), TEAM_B: iter(ids_b)}
    picked: dict[str, Team] = {}
    while remaining:
        order = (TEAM_A, TEAM_B) if coin.random() < 0.5 else (TEAM_B, TEAM_A)
        for team in order:
            # a team that has no documents left was removed
            new_ids = (doc_id for doc_id in remaining.get(team, ()) if doc_id not in picked)
            doc_id = next(new_ids, None)
            if doc_id is None:
                remaining.pop(team, None)
            else:
                picked[doc_id] = team
    return [Pick(doc_id, team) for doc_id, team in picked.items()]


@dataclass(frozen=True, slots=True)
class InterleavedList:
    """A page of a list that interleaves two rankings, or the reason why the rankings were not interleaved.

    Attributes:
        name: the experiment's name.
        failure: why the rankings were not interleaved. None if they were.
        hits: the hits of the page.
        teams: the team of each hit, such as "ABBA".
        stages: the reports of team B's stages. Those of team A belong to the search itself.
        warnings: the warnings of both rankings.
        candidates: the candidates of team B's ranking.
        max_score: the highest ``_score`` on any page. None if there are no hits.
    """

    name: str
    failure: str | None
    hits: Sequence[Mapping[str, Any]] = ()
    teams: str = ""
    stages: tuple[StageReport, ...] = ()
    warnings: tuple[SearchWarning, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    max_score: float | None = None


def interleave_rankings(
    interleave: Interleave,
    options: Sequence[Rerank],
    rankings: tuple[Ranking, Ranking],
    response: Mapping[str, Any],
    page: Page,
) -> InterleavedList:
    """Return a page of the list that interleaves both teams' rankings.

    If a stage of either ranking failed, the comparison would be unfair, and the rankings are not interleaved.

    Args:
        interleave: the experiment's name, the user's key and the options of team B.
        options: the options of team A and of team B.
        rankings: the rankings of team A and of team B.
        response: the first pass's response.
        page: the page of the list to return.
    """
    ranking_a, ranking_b = rankings
    failures = [
        f"team {team}: {describe_failures(ranking.reports) or 'it was not reranked'}"
        for team, ranking, team_options in zip((TEAM_A, TEAM_B), rankings, options, strict=True)
        if not _is_complete(ranking, team_options)
    ]
    if failures:
        failure = "; ".join(failures)
        logger.warning("[not-interleaved] a search was not interleaved: %s", failure)
        return InterleavedList(interleave.name, failure, candidates=ranking_b.candidates)
    seed = f"{interleave.key}\0{interleave.name}\0{ranking_a.query.text}"
    picks = team_draft(_document_ids(ranking_a), _document_ids(ranking_b), seed)
    ids = make_candidate_ids(response["hits"]["hits"])
    hits_by_id = dict(zip(ids, response["hits"]["hits"], strict=True))
    reports = {TEAM_A: ranking_a.reports, TEAM_B: ranking_b.reports}
    candidates = {
        TEAM_A: {candidate.doc_id: candidate for candidate in ranking_a.candidates},
        TEAM_B: {candidate.doc_id: candidate for candidate in ranking_b.candidates},
    }
    hits = []
    start = page.count_above([doc_id for doc_id, _ in picks], ids)
    shown = picks[start : start + page.size]
    for rank, (doc_id, team) in enumerate(shown, start=start + 1):
        if doc_id not in hits_by_id:  # the hit is in the order saved for the first page, but this search missed it
            continue
        hit = merge_hit(hits_by_id[doc_id], candidates[team][doc_id], page, reports[team])
        team_ranks = {name: by_id[doc_id].rank for name, by_id in candidates.items()}
        hits.append(_add_team(hit, rank, team, team_ranks))
    return InterleavedList(
        name=interleave.name,
        failure=None,
        hits=hits,
        teams="".join(hit["_rerank"]["team"] for hit in hits),
        stages=ranking_b.reports,
        warnings=tuple(dict.fromkeys([*ranking_a.warnings, *ranking_b.warnings])),
        candidates=ranking_b.candidates,
        max_score=1.0 if picks else None,  # the first hit's score, 1 / rank
    )


def _document_ids(ranking: Ranking) -> list[str]:
    return [candidate.doc_id for candidate in ranking.candidates]


def _is_complete(ranking: Ranking, options: Rerank) -> bool:
    """Return whether all stages that the options require were applied to a ranking."""
    return options.pipeline == NO_STAGES or find_applied(ranking.reports) is True


def _add_team(hit: Mapping[str, Any], rank: int, team: Team, team_ranks: Mapping[Team, int]) -> dict[str, Any]:
    """Return the hit with its team and its ranks in both rankings in ``_rerank``, such as ``{"A": 1, "B": 3}``.

    The scores of two rankings are not comparable, so the hit's ``_score`` is 1 / rank.
    """
    entries = {**hit["_rerank"], "team": team, "team_ranks": dict(team_ranks)}
    if "explanation" in entries:
        sentence = f"picked by team {team}, which has it at rank {team_ranks[team]}; _score {1 / rank:.6f} = 1 / {rank}"
        entries["explanation"] = [*entries["explanation"][:-1], sentence]
    return {**hit, "_score": 1 / rank, "_rerank": entries}
