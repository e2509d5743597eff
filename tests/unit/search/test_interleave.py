"""Pages of two rankings: the draft, its fairness, and searches on the embedded engine."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from osrerank import Client, Rerank, connect
from osrerank.aio import connect_async
from osrerank.decision.use.clicks import ShownPage
from osrerank.decision.use.interleaving import measure_preferences
from osrerank.errors import ConfigError, InferenceError
from osrerank.options.defaults import Defaults
from osrerank.options.interleave import Interleave
from osrerank.response import Page
from osrerank.search.interleave import interleave_rankings, team_draft
from osrerank.testing import FunctionScorer
from osrerank.types import Candidate, Query, Ranking, StageScore
from tests.articles import fill, watched
from tests.letters import Letters
from tests.rankings import BY_LENGTH, ids
from tests.workers import TINY

NOTES = [{"title": f"note {place}", "text": "blood pressure " + "low " * place} for place in range(20)]
BM25 = {"with": {"pipeline": "none"}, "key": "s1"}
SESSIONS = 10_000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=BY_LENGTH) as opened_client:
        fill(opened_client, "notes", NOTES)
        yield opened_client


def page(client: Client, interleave: Any, **options: Any) -> Any:
    rerank: Any = {"blend": "replace", "explain": True, "interleave": interleave}
    return client.search("blood pressure", index="notes", rerank=rerank, **options)


def test_each_round_gives_each_team_one_pick() -> None:
    picks = team_draft(["a", "b", "c", "d"], ["d", "c", "b", "a"], "seed")
    assert sorted(pick.doc_id for pick in picks) == ["a", "b", "c", "d"]
    assert {frozenset(pick.team for pick in picks[start : start + 2]) for start in (0, 2)} == {frozenset("AB")}
    assert [pick.doc_id for pick in picks if pick.team == "A"] in (["a", "b"], ["a", "c"])


def test_a_longer_draft_begins_with_the_shorter_draft() -> None:
    a_ids, b_ids = [str(n) for n in range(100)], [str(n) for n in reversed(range(100))]
    draft = team_draft(a_ids, b_ids, "seed")
    assert team_draft(a_ids[:20], b_ids[:20], "seed")[:20] == draft[:20]
    assert team_draft(a_ids, b_ids, "seed") == draft != team_draft(a_ids, b_ids, "other seed")


def test_a_hit_that_is_no_longer_found_has_no_team_letter() -> None:
    candidates = [
        Candidate(doc_id, "x", 1.0, rank, (StageScore("first_pass", 1.0, rank, 0.5),))
        for rank, doc_id in enumerate("abcd", 1)
    ]
    ranking = Ranking(Query("q", "x"), tuple(candidates))
    response = {"hits": {"hits": [{"_id": doc_id, "_score": 1.0} for doc_id in "abd"]}}
    options = Rerank(pipeline="none")
    interleaved = interleave_rankings(
        Interleave({"pipeline": "none"}, key="s1"), (options, options), (ranking, ranking), response, Page(0, 4)
    )
    assert [hit["_id"] for hit in interleaved.hits] == ["a", "b", "d"]
    assert interleaved.teams == "".join(hit["_rerank"]["team"] for hit in interleaved.hits)


def clicked(doc_ids: list[str], rng: random.Random, attraction: dict[str, float]) -> frozenset[str]:
    """What a user clicks who looks less and less further down."""
    return frozenset(
        doc_id for position, doc_id in enumerate(doc_ids) if rng.random() < attraction.get(doc_id, 0.05) * 0.8**position
    )


def simulated(a_ids: list[str], b_ids: list[str], attraction: dict[str, float], *, seed: int, sessions: int) -> Any:
    rng = random.Random(seed)
    pages = []
    for number in range(sessions):
        picks = team_draft(a_ids, b_ids, f"{seed}:{number}")[:10]
        doc_ids = [pick.doc_id for pick in picks]
        teams = "".join(pick.team for pick in picks)
        pages.append(ShownPage("q", tuple(doc_ids), clicked(doc_ids, rng, attraction), str(number), teams=teams))
    return measure_preferences(pages)[0]


GOOD = [f"d{n}" for n in range(20)]
ATTRACTION = {doc_id: 0.5 if place < 3 else 0.05 for place, doc_id in enumerate(GOOD)}
WORSE = [*GOOD[3:8], *GOOD[:3], *GOOD[8:]]


def test_the_better_team_wins_the_clicks_whichever_team_it_is() -> None:
    assert simulated(GOOD, WORSE, ATTRACTION, seed=1, sessions=SESSIONS // 2).winner == "A"
    assert simulated(WORSE, GOOD, ATTRACTION, seed=2, sessions=SESSIONS // 2).winner == "B"


@pytest.mark.long
def test_equal_rankers_have_equal_shares() -> None:
    outcome = simulated(GOOD, GOOD, ATTRACTION, seed=3, sessions=SESSIONS)
    assert outcome.winner == ""
    assert outcome.low < 0.5 < outcome.high
    assert outcome.high - outcome.low < 0.03
    mirrored = [GOOD[1], GOOD[0], *GOOD[2:]]
    even = simulated(GOOD, mirrored, ATTRACTION, seed=4, sessions=SESSIONS)
    assert even.winner == ""
    assert abs(even.share_b - 0.5) < 0.02


def test_an_interleaved_page_names_the_team_of_each_hit(client: Client) -> None:
    response = page(client, BM25, size=10)
    marks = response["rerank"]
    hits = response["hits"]["hits"]
    assert (marks["applied"], marks["reason"], marks["interleave"]["applied"]) == (True, None, True)
    assert marks["interleave"]["stages"] == []
    assert marks["interleave"]["teams"] == "".join(hit["_rerank"]["team"] for hit in hits)
    assert Counter(marks["interleave"]["teams"]) == {"A": 5, "B": 5}
    longest = [str(number) for number in reversed(range(20))]
    for hit in hits:
        assert hit["_rerank"]["team_ranks"]["A"] == longest.index(hit["_id"]) + 1
        assert hit["_rerank"]["team_ranks"]["B"] == hit["_rerank"]["first_pass"]["rank"]
        assert hit["_rerank"]["explanation"][-1].startswith(f"picked by team {hit['_rerank']['team']}, which has it at")
    assert [hit["_score"] for hit in hits] == [1 / rank for rank in range(1, 11)]
    assert response["hits"]["max_score"] == 1.0


def test_pages_of_a_session_agree_and_pages_of_another_session_differ(client: Client) -> None:
    all_ids = ids(page(client, BM25, size=20))
    parts = [ids(page(client, BM25, size=5, from_=offset)) for offset in (0, 5, 10, 15)]
    assert [doc_id for part in parts for doc_id in part] == all_ids
    assert len({tuple(ids(page(client, {**BM25, "key": f"s{n}"}, size=10))) for n in range(8)}) > 3


def test_warnings_of_both_teams_are_shown_once(tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path / 'engine'}", scorer=Letters()) as client:
        fill(client, "notes", NOTES)
        options: Any = {"pipeline": "mono", "interleave": {"with": {"pipeline": "mono", "depth": 5}, "key": "s"}}
        (warning,) = client.search("blood pressure", index="notes", rerank=options)["rerank"]["warnings"]
    assert warning.startswith("the pipeline mono ran as vectors")


def test_scores_that_both_teams_need_are_computed_once(tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path / 'engine'}", model=TINY) as client:
        fill(client, "notes", NOTES)
        options = {"blend": "replace", "depth": 15, "interleave": {"with": {"blend": "rrf", "depth": 20}, "key": "s"}}
        marks = client.search("blood pressure", index="notes", rerank=options)["rerank"]
    a_stage, b_stage = marks["stages"][0], marks["interleave"]["stages"][0]
    assert (a_stage["inferences"], a_stage["cached"]) == (15, 0)
    assert (b_stage["inferences"], b_stage["cached"]) == (5, 15)


def test_both_teams_share_one_first_pass_with_the_fields_of_both(client: Client) -> None:
    options: Any = {"fields": "text", "depth": 3, "interleave": {"with": {"fields": "title", "depth": 7}, "key": "s"}}
    with watched(client) as requests:
        response = client.search("blood pressure", index="notes", rerank=options, _source=False, size=2)
    searches = [body for path, body in requests if path.endswith("_search")]
    assert [(search["size"], search["fields"]) for search in searches] == [(7, ["text", "title"])]
    assert all("fields" not in hit for hit in response["hits"]["hits"])
    assert response["rerank"]["interleave"]["applied"] is True


def test_a_page_of_half_a_ranking_is_not_interleaved(client: Client, tmp_path: Path) -> None:
    def fails(_query: str, text: str) -> float:
        if text == "note 7":  # the titles are read by team B alone
            raise InferenceError("the model broke")
        return float(len(text))

    with connect(f"embedded:{tmp_path / 'other'}", scorer=FunctionScorer(fails)) as broken:
        fill(broken, "notes", NOTES)
        options: Any = {"blend": "replace", "fields": "text"}
        interleave_options = {"with": {"fields": "title"}, "key": "s"}
        response = broken.search("blood pressure", index="notes", rerank={**options, "interleave": interleave_options})
        alone = broken.search("blood pressure", index="notes", rerank=options)
        assert ids(response) == ids(alone)
        assert response["rerank"]["interleave"]["applied"] is False
        assert response["rerank"]["interleave"]["reason"].startswith("team B: mono: ")
        strict: Any = {**options, "interleave": interleave_options, "on_failure": "raise"}
        with pytest.raises(InferenceError):
            broken.search("blood pressure", index="notes", rerank=strict)


def test_asynchronous_searches_and_multi_searches_interleave(client: Client, tmp_path: Path) -> None:
    expected_ids = ids(page(client, BM25, size=10))
    rerank: Any = {"blend": "replace", "interleave": BM25}
    query = {"multi_match": {"query": "blood pressure", "fields": ["title", "text"]}}
    lines = [{"index": "notes"}, {"query": query, "size": 10}] * 2
    responses = client.msearch(body=lines, rerank=rerank)["responses"]
    assert [ids(response) for response in responses] == [expected_ids, expected_ids]
    assert responses[0]["rerank"]["interleave"]["teams"]

    async def search() -> Any:
        async with connect_async(f"embedded:{tmp_path / 'engine'}", scorer=BY_LENGTH) as asynchronous:
            return await asynchronous.search("blood pressure", index="notes", rerank=rerank, size=10)

    client.close()
    assert ids(asyncio.run(search())) == expected_ids


def test_interleaving_is_refused_as_a_default_and_for_texts(client: Client) -> None:
    options = Rerank.of({"interleave": BM25}, Rerank())
    assert options is not None
    with pytest.raises(ConfigError, match="cannot be a default"):
        Defaults(options)
    with pytest.raises(ConfigError, match="interleave has no effect here"):
        client.rerank("q", ["a", "b"], options=options)
    assert options.rankings[1] == Rerank(pipeline="none")
    assert hash(options) == hash(Rerank.of(options, Rerank()))
