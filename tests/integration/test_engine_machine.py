"""The real OpenSearch and the embedded engine, given the same requests in any order: same answers, same errors."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from opensearchpy import OpenSearch, TransportError

from tests import machines
from tests.integration.conftest import Engines

pytestmark = pytest.mark.integration

WORDS = ["salt", "waters", "running", "heat", "the", "fever"]
MAPPINGS = {
    "properties": {
        "text": {"type": "text", "analyzer": "english"},
        "tag": {"type": "keyword"},
        "year": {"type": "integer"},
        "seen": {"type": "date"},
        "open": {"type": "boolean"},
    }
}
SETTINGS = {"index": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "-1"}}
KEPT = ("_id", "result", "status", "found", "_source", "created")
"""Fields of an answer that are compared. So is the version of a document that was never deleted: OpenSearch counts on
from a deleted one's for a minute, the embedded engine begins again."""

doc_ids = st.sampled_from(["1", "2", "3", "4", "é ß"])
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)
good = st.fixed_dictionaries(
    {},
    optional={
        "text": texts,
        "tag": st.sampled_from(["a", "b", ["a", "c"]]),
        "year": st.sampled_from([1999, 2005, "2011"]),
        "seen": st.sampled_from(["2020-01-01", "2021-06-15T12:00:00Z"]),
        "open": st.booleans(),
    },
)
bad = st.sampled_from(
    [{"year": "many"}, {"seen": "yesterday"}, {"open": "maybe"}, {"year": {"x": 1}}, {"text": {"a": 1}}]
)
sources = st.one_of(good, good, good, bad)
queries = st.one_of(
    st.just({"match_all": {}}),
    texts.map(lambda text: {"match": {"text": text}}),
    texts.map(lambda text: {"match_phrase": {"text": text}}),
    st.sampled_from(["a", "b", "c"]).map(lambda tag: {"term": {"tag": tag}}),
    st.sampled_from(["text", "year", "nowhere"]).map(lambda name: {"exists": {"field": name}}),
    st.sampled_from([1, 2000, 2006]).map(lambda year: {"range": {"year": {"gte": year}}}),
    st.lists(doc_ids, max_size=3).map(lambda keys: {"ids": {"values": keys}}),
    texts.map(lambda text: {"bool": {"must_not": {"match": {"text": text}}, "filter": {"exists": {"field": "year"}}}}),
    st.sampled_from([{"range": {"year": {"gte": "many"}}}, {"nonsense": {}}, {"match": {"text": "a", "tag": "b"}}]),
)
actions = st.lists(
    st.tuples(st.sampled_from(["index", "create", "delete"]), doc_ids, sources),
    min_size=1,
    max_size=5,
)


class EnginesMachine(RuleBasedStateMachine):
    """An index on each engine, and requests that both are given."""

    def __init__(self, real: OpenSearch, embedded: OpenSearch) -> None:
        super().__init__()
        self.engines = (real, embedded)
        self.index = f"machine-{uuid.uuid4().hex[:12]}"
        self.deleted: set[str] = set()
        self.both(lambda one: one.indices.create(index=self.index, body={"settings": SETTINGS, "mappings": MAPPINGS}))

    def both(self, request: Callable[[OpenSearch], Any]) -> tuple[Any, Any]:
        """Return both engines' answers to a request, or their errors' status and kind, which must be the same."""
        answers = tuple(_answer(engine, request) for engine in self.engines)
        errors = [answer if isinstance(answer, _Refused) else None for answer in answers]
        assert errors[0] == errors[1], errors
        return answers[0], answers[1]

    def kept(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return what is compared of an answer about one document."""
        has_version = "_version" in answer and answer["_id"] not in self.deleted
        return kept(answer) | ({"_version": answer["_version"]} if has_version else {})

    def same(self, request: Callable[[OpenSearch], Any], read: Callable[[Any], Any]) -> None:
        """Check that both engines answer the same, as far as it is read."""
        real, embedded = self.both(request)
        if not isinstance(real, _Refused):
            assert read(embedded) == read(real)

    @rule(key=doc_ids, source=sources)
    def index_document(self, key: str, source: dict[str, Any]) -> None:
        self.same(lambda one: one.index(index=self.index, id=key, body=source), self.kept)

    @rule(key=doc_ids)
    def delete(self, key: str) -> None:
        self.deleted.add(key)
        self.same(lambda one: one.delete(index=self.index, id=key), self.kept)

    @rule(given=actions, refreshes=st.booleans())
    def bulk(self, given: list[tuple[str, str, dict[str, Any]]], *, refreshes: bool) -> None:
        self.deleted |= {key for action, key, _ in given if action == "delete"}
        lines = [line for action in given for line in _lines(*action)]

        def read(answer: dict[str, Any]) -> Any:
            items = [(action, item) for one in answer["items"] for action, item in one.items()]
            return answer["errors"], [
                (action, self.kept(item), (item.get("error") or {}).get("type")) for action, item in items
            ]

        self.same(lambda one: one.bulk(index=self.index, body=lines, refresh=refreshes), read)

    @rule()
    def refresh(self) -> None:
        self.both(lambda one: one.indices.refresh(index=self.index))

    @rule(key=doc_ids)
    def get(self, key: str) -> None:
        self.same(lambda one: one.get(index=self.index, id=key), self.kept)
        self.same(lambda one: one.exists(index=self.index, id=key), bool)

    @rule(keys=st.lists(doc_ids, min_size=1, max_size=3))
    def get_several(self, keys: list[str]) -> None:
        self.same(
            lambda one: one.mget(index=self.index, body={"ids": keys}),
            lambda answer: [self.kept(document) for document in answer["docs"]],
        )

    @rule(query=queries)
    def count(self, query: dict[str, Any]) -> None:
        self.same(lambda one: one.count(index=self.index, body={"query": query}), lambda answer: answer["count"])

    @rule(query=queries)
    def search(self, query: dict[str, Any]) -> None:
        self.same(lambda one: one.search(index=self.index, body={"query": query, "size": 20}), found)

    def teardown(self) -> None:
        for engine in self.engines:
            engine.indices.delete(index=self.index, ignore_unavailable=True)


class _Refused(tuple[int, str]):
    """Status and kind of an error."""

    __slots__ = ()


def _answer(engine: OpenSearch, request: Callable[[OpenSearch], Any]) -> Any:
    try:
        return request(engine)
    except TransportError as error:
        return _Refused((error.status_code, _kind(error)))


def _kind(error: TransportError) -> str:
    """Return the type of an error's root cause; what was found, where it is the answer of a missing document."""
    reason = error.info.get("error") if isinstance(error.info, dict) else None
    if isinstance(reason, dict):
        return str(reason["root_cause"][0]["type"])
    return str(sorted(kept(error.info).items())) if isinstance(error.info, dict) else str(error.info)


def kept(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: answer[name] for name in KEPT if name in answer}


def found(answer: dict[str, Any]) -> Any:
    """Return the hits of a search, in any order, and their number."""
    hits = sorted((hit["_id"], json.dumps(hit["_source"], sort_keys=True)) for hit in answer["hits"]["hits"])
    return hits, answer["hits"]["total"], answer["_shards"]["failed"]


def _lines(action: str, key: str, source: dict[str, Any]) -> list[dict[str, Any]]:
    if action == "delete":
        return [{"delete": {"_id": key}}]
    return [{action: {"_id": key}}, source]


def test_both_engines_answer_drawn_sequences_of_requests_alike(engines: Engines) -> None:
    machines.run(lambda: EnginesMachine(*engines), examples=8, steps=25)
