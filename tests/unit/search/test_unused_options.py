"""Options without effect outside a search are refused where they are given, and ignored where they are defaults."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from osrerank import Rerank, Reranker
from osrerank.aio import connect_async
from osrerank.errors import ConfigError
from tests.rankings import BY_LENGTH, client_for, response_of

TEXTS = ["a", "bbb", "cc"]
SEARCHES = "client.search and client.msearch"
RESPONSES = "client.search, client.msearch and client.rerank_response"
Cases = list[tuple[dict[str, Any], str, str]]
FOR_SEARCHES: Cases = [
    ({"query": "low"}, "query", SEARCHES),
    ({"query_fields": "text"}, "query_fields", SEARCHES),
    ({"rm3": True}, "rm3", "client.search"),
    ({"min_probability": 0.0}, "min_probability", SEARCHES),
    ({"cutoff": {"precision": 0.9}}, "cutoff", SEARCHES),
    ({"traffic": {"share": 0.5}}, "traffic", SEARCHES),
]
FOR_HITS: Cases = [
    ({"fields": ["text"]}, "fields", RESPONSES),
    ({"explain": True}, "explain", RESPONSES),
    ({"interleave": {"with": {"pipeline": "none"}, "key": "s"}}, "interleave", RESPONSES),
]
FOR_LISTS: Cases = [
    ({"min_score": 0.0}, "min_score", f"{RESPONSES}, and in Reranker"),
]


def rerank(options: Any) -> Any:
    return client_for(None).rerank("q", TEXTS, options=options)


def rerank_response(options: Any) -> Any:
    return client_for(None).rerank_response(response_of(TEXTS), "q", options=options)


def in_asyncio(method: str, *arguments: Any) -> Callable[[Any], Any]:
    async def run(options: Any) -> Any:
        async with connect_async("http://localhost:9", scorer=BY_LENGTH) as client:
            return await getattr(client, method)(*arguments, options=options)

    return lambda options: asyncio.run(run(options))


def reranker(options: Any) -> Any:
    return Reranker(scorer=BY_LENGTH, **options).rank("q", TEXTS)


RANKINGS = [rerank, in_asyncio("rerank", "q", TEXTS)]
LISTS = [rerank_response, in_asyncio("rerank_response", response_of(TEXTS), "q")]
REFUSED = [
    *((call, *one) for call in (*RANKINGS, *LISTS, reranker) for one in FOR_SEARCHES),
    *((call, *one) for call in (*RANKINGS, reranker) for one in FOR_HITS),
    *((call, *one) for call in RANKINGS for one in FOR_LISTS),
]


@pytest.mark.parametrize(("call", "options", "named", "where"), REFUSED)
def test_an_option_without_effect_is_refused_and_says_where_it_works(
    call: Callable[[Any], Any], options: dict[str, Any], named: str, where: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        call(options)
    assert str(refused.value) == f"rerank option {named} has no effect here: leave it out; it works in {where}"
    assert refused.value.setting == f"rerank.{named}"


@pytest.mark.parametrize(
    ("call", "options"),
    [
        *((call, one) for call in LISTS for one, *_ in (*FOR_HITS, *FOR_LISTS)),
        *((reranker, one) for one, *_ in FOR_LISTS),
        *((call, {"rm3": None, "explain": False, "separator": "; "}) for call in (*RANKINGS, *LISTS, reranker)),
    ],
)
def test_options_with_an_effect_are_accepted_outside_a_search(
    call: Callable[[Any], Any], options: dict[str, Any]
) -> None:
    assert call(options)


def test_unused_options_in_a_rerank_object_are_refused() -> None:
    with pytest.raises(ConfigError, match="rm3 has no effect here"):
        rerank(Rerank.of({"rm3": True}, Rerank()))
    assert rerank(Rerank(depth=2)).candidates[0].text == "bbb"


@pytest.mark.parametrize("options", [one for one, *_ in (*FOR_SEARCHES, *FOR_LISTS)])
@pytest.mark.parametrize("given", [True, {"depth": 50}])
def test_default_options_without_effect_are_ignored_outside_a_search(options: Any, given: Any) -> None:
    client = client_for(None, rerank=options)
    assert [candidate.text for candidate in client.rerank("q", TEXTS, options=given).candidates] == ["bbb", "cc", "a"]
    assert client.rerank_response(response_of(TEXTS), "q", options=given)["hits"]["hits"][0]["_id"] == "d1"
