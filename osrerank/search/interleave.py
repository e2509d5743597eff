"""Interleave two rankings on one page, so that clicks show which ranking users prefer.

Team-draft interleaving: Radlinski, Kurup, Joachims: How does clickthrough data reflect retrieval quality?, CIKM 2008,
section 4. In each round a coin decides which team picks first; each team picks its best hit that is not yet listed.
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
from osrerank.search.shadow import digest_of
from osrerank.types import Candidate, Ranking, StageReport
from osrerank.types.reasons import SearchWarning

logger = logging.getLogger(__name__)

Team = Literal["A", "B"]
TEAM_A: Team = "A"
"""The team that is ranked by the search's own options; team B is ranked by the options of ``with``."""
TEAM_B: Team = "B"


class Pick(NamedTuple):
    """An entry of the interleaved list.

    Attributes:
        doc_id: the document's id.
        team: the team that picked the document; a click on it counts for that team's ranking.
    """

    doc_id: str
    team: Team


def team_draft(ids_a: Sequence[str], ids_b: Sequence[str], seed: str) -> list[Pick]:
    """Interleave two rankings of document ids into one list without duplicates; the same seed gives the same list.

    A prefix of the list depends only on prefixes of the rankings, so longer rankings continue the same list.
    """
    coin = random.Random(seed.encode("utf-8", "surrogatepass"))  # noqa: S311 - a repeatable draw, no secret
    remaining = {TEAM_A: iter(ids_a), TEAM_B: iter(ids_b)}
    picked: dict[str, Team] = {}
    while remaining:
        order = (TEAM_A, TEAM_B) if coin.random() < 0.5 else (TEAM_B, TEAM_A)
        for team in order:
            doc_id = next((candidate for candidate in remaining.get(team, ()) if candidate not in picked), None)
            if doc_id is None:
                remaining.pop(team, None)
            else:
                picked[doc_id] = team
    return [Pick(doc_id, team) for doc_id, team in picked.items()]


def draw_seed(interleave: Interleave, query: str) -> str:
    """Return the seed of the coin tosses: the reader's key, the experiment's name and the query."""
    return f"{interleave.key}\0{interleave.name}\0{query}"


def session_digest(interleave: Interleave) -> str:
    """Return the digest that identifies the reader in records, which do not contain the key."""
    return digest_of(interleave.key)


@dataclass(frozen=True, slots=True)
class InterleavedList:
    """A page of a list that interleaves two rankings, or the reason why they were not interleaved.

    Attributes:
        name: the experiment's name.
        obstacle: the reason why the page is not interleaved; None if it is.
        hits: the hits of the page.
        teams: the letter of each hit's team, in the order of the page.
        stages: the reports of team B's stages.
        warnings: the warnings of both rankings.
        candidates: the candidates of team B's ranking.
        max_score: the highest ``_score``.
    """

    name: str
    obstacle: str | None
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

    If a team's ranking is incomplete, the comparison would be unfair. Then the rankings are not interleaved.

    Args:
        interleave: the experiment's name, the reader's key and the options of team B.
        options: the options of each team.
        rankings: the ranking of each team.
        response: the first pass's response.
        page: which part of the list to return.
    """
    ranking_a, ranking_b = rankings
    incomplete = [
        f"team {team}: {_incompleteness(ranking)}"
        for team, ranking, team_options in zip((TEAM_A, TEAM_B), rankings, options, strict=True)
        if not _is_complete(ranking, team_options)
    ]
    if incomplete:
        reason = "; ".join(incomplete)
        logger.warning("[not-interleaved] a search was not interleaved: %s", reason)
        return InterleavedList(interleave.name, reason, candidates=ranking_b.candidates)
    picks = team_draft(_document_ids(ranking_a), _document_ids(ranking_b), draw_seed(interleave, ranking_a.query.text))
    ids = make_candidate_ids(response["hits"]["hits"])
    hits_by_id = dict(zip(ids, response["hits"]["hits"], strict=True))
    by_team = {
        team: {candidate.doc_id: candidate for candidate in ranking.candidates}
        for team, ranking in zip((TEAM_A, TEAM_B), rankings, strict=True)
    }
    hits = []
    start = page.count_above([doc_id for doc_id, _ in picks], ids)
    shown = picks[start : start + page.size]
    for rank, (doc_id, team) in enumerate(shown, start=start + 1):
        if doc_id not in hits_by_id:  # the first page's search found the hit, but this search does not
            continue
        candidate = by_team[team][doc_id]
        hit = merge_hit(hits_by_id[doc_id], candidate, page, rankings[team == TEAM_B].reports)
        ranks = {name: candidates[doc_id].rank for name, candidates in by_team.items()}
        hits.append(_mark_team(hit, rank, team, ranks, candidate))
    return InterleavedList(
        interleave.name,
        None,
        hits,
        "".join(hit["_rerank"]["team"] for hit in hits),
        ranking_b.reports,
        tuple(dict.fromkeys([*ranking_a.warnings, *ranking_b.warnings])),
        ranking_b.candidates,
        1.0 if picks else None,
    )


def _document_ids(ranking: Ranking) -> list[str]:
    return [candidate.doc_id for candidate in ranking.candidates]


def _is_complete(ranking: Ranking, options: Rerank) -> bool:
    """Return whether all stages that the options require were applied to a ranking."""
    return options.pipeline == NO_STAGES or find_applied(ranking.reports) is True


def _incompleteness(ranking: Ranking) -> str:
    return describe_failures(ranking.reports) or "it was not reranked"


def _mark_team(
    hit: Mapping[str, Any], rank: int, team: Team, ranks: Mapping[Team, int], candidate: Candidate
) -> dict[str, Any]:
    """Mark a hit with its team; its ``_score`` is 1 / rank, because scores of two rankings are not comparable."""
    marks = {**hit["_rerank"], "team": team, "team_ranks": dict(ranks)}
    if "explanation" in marks:
        sentence = f"picked by team {team}, which has it at rank {candidate.rank}; _score {1 / rank:.6f} = 1 / {rank}"
        marks["explanation"] = [*marks["explanation"][:-1], sentence]
    return {**hit, "_score": 1 / rank, "_rerank": marks}
