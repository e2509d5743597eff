"""A client and its cache, whatever happens to the cache: the response's hits are those of a client without one."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from redis import Redis

from osrerank import Client, connect
from osrerank.scoring.cache.local import ENTRY_BYTES, LocalStore
from osrerank.scoring.cache.scorer import CachedScorer, score_keys
from osrerank.scoring.cache.store import OLD, YOUNG, RedisStore
from osrerank.scoring.registry import load_scorer
from osrerank.types import Scorer
from tests import machines
from tests.toxics import Proxies, Toxic

MODELS = {name: str(Path(__file__).parents[1] / "data" / f"tiny-bert-{name}") for name in ("one-label", "two-labels")}
WORDS = ["salt", "water", "pressure", "wing", "heat", "fever"]
NOTES = 24
OPTIONS = [{"fields": ["text"]}, {"fields": ["title", "text"]}, {"fields": ["title", "text"], "separator": " | "}]
BROKEN = [b"", b"\x00", b"12345", b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"osrerank"]
"""No scores: of other lengths, NaN, and infinite."""
TOXICS = [Toxic("reset"), Toxic("reset", 300), Toxic("latency", 20), Toxic("slow_reader"), None]
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=2, unique=True).map(" ".join)
texts, models, options = st.text(max_size=12), st.sampled_from(sorted(MODELS)), st.sampled_from(OPTIONS)


@dataclass
class World:
    """What all examples share: models, an index, a Redis and the way to it."""

    folder: Path
    redis: Redis
    proxies: Proxies
    scorers: dict[str, Scorer]
    plain: dict[str, Client]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("notes")
    scorers = {name: load_scorer(path, backend="onnx", threads=1) for name, path in MODELS.items()}
    plain = {name: connect(f"embedded:{folder}", scorer=scorer) for name, scorer in scorers.items()}
    with Proxies() as proxies, Redis.from_url(redis_url) as redis:
        proxies.open("redis", int(redis_url.rsplit(":", 1)[1].split("/", maxsplit=1)[0]))
        yield World(folder, redis, proxies, scorers, plain)
        redis.delete(YOUNG, OLD)  # they may be of another type, which later tests' caches could not use
    for client in plain.values():
        client.close()
    for scorer in scorers.values():
        scorer.close()


def note(number: int, turn: int) -> dict[str, str]:
    words = (WORDS[(number * step + turn) % len(WORDS)] for step in range(1, 3 + number % 7))
    return {"title": f"note {number % 5}", "text": " ".join(words)}


class CacheMachine(RuleBasedStateMachine):
    """Searches of caching clients, between everything that can happen to their cache."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.caching: dict[str, Client] = {}
        self.caches: dict[str, CachedScorer] = {}
        world.proxies.infect("redis", None)
        world.redis.delete(YOUNG, OLD)
        lines = [line for number in range(NOTES) for line in ({"index": {"_id": str(number)}}, note(number, 0))]
        world.plain["one-label"].bulk(index="notes", body=lines, refresh=True)
        for name in MODELS:
            self.restart(name)

    @rule(name=models)
    def restart(self, name: str) -> None:
        """Begin a process anew, with nothing in its memory."""
        if name in self.caching:
            self.caching.pop(name).close()
            self.caches.pop(name).disconnect()
        port = self.world.proxies.links["redis"].port
        remote = RedisStore(f"redis://127.0.0.1:{port}/0", ttl_s=60, max_bytes=60 * 110, pause_s=0.02)
        self.caches[name] = CachedScorer(self.world.scorers[name], remote, LocalStore(30 * ENTRY_BYTES))
        self.caching[name] = connect(f"embedded:{self.world.folder}", scorer=self.caches[name])

    @rule(name=models, query=queries, depth=st.integers(1, NOTES), given=options)
    def search(self, name: str, query: str, depth: int, given: dict[str, object]) -> None:
        """Search with and without the cache."""
        search_arguments = {"index": "notes", "size": NOTES, "rerank": {"depth": depth, **given}}
        cached_response, plain_response = (
            clients[name].search(query, **search_arguments) for clients in (self.caching, self.world.plain)
        )
        assert json.dumps(cached_response["hits"]) == json.dumps(plain_response["hits"])
        assert cached_response["rerank"]["applied"] == plain_response["rerank"]["applied"]

    @rule(name=models, query=queries, depths=st.lists(st.integers(1, NOTES), min_size=2, max_size=4))
    def search_at_once(self, name: str, query: str, depths: list[int]) -> None:
        """Search in threads that need the same pairs at the same time."""
        texts = [note(number, 0)["text"] for number in range(NOTES)]
        plain_values = self.world.scorers[name].score(query, texts, [(index,) for index in range(NOTES)]).values

        def scored(depth: int) -> bytes:
            return self.caches[name].score(query, texts, [(index,) for index in range(depth)]).values.tobytes()

        with ThreadPoolExecutor(len(depths)) as threads:
            assert list(threads.map(scored, depths)) == [plain_values[:depth].tobytes() for depth in depths]

    @rule(number=st.integers(0, NOTES - 1), turn=st.integers(1, 3))
    def change_text(self, number: int, turn: int) -> None:
        """Let a document have another text."""
        self.world.plain["one-label"].index(index="notes", id=str(number), body=note(number, turn), refresh=True)

    @rule(share=st.integers(1, 3), value=st.sampled_from(BROKEN), generation=st.sampled_from([YOUNG, OLD]))
    def corrupt(self, share: int, value: bytes, generation: bytes) -> None:
        """Write over every so many entries what is no score."""
        if self.world.redis.type(generation) == b"hash":
            for key in self.world.redis.hkeys(generation)[::share]:
                self.world.redis.hset(generation, key, value)

    @rule(generation=st.sampled_from([YOUNG, OLD]), value=st.sampled_from([b"text", None]))
    def replace(self, generation: bytes, value: bytes | None) -> None:
        """Put something else in the place of a generation, or drop it."""
        self.world.redis.delete(generation)
        if value is not None:
            self.world.redis.set(generation, value)

    @rule()
    def age(self) -> None:
        """Let the young generation become the old one."""
        if self.world.redis.type(YOUNG) == b"hash":
            self.world.redis.rename(YOUNG, OLD)

    @rule(toxic=st.sampled_from(TOXICS))
    def disturb(self, toxic: Toxic | None) -> None:
        """Take Redis away, in part, or give it back."""
        self.world.proxies.infect("redis", toxic)

    def teardown(self) -> None:
        for name in list(self.caching):
            self.caching.pop(name).close()
            self.caches.pop(name).disconnect()


def test_a_cache_never_changes_scores_whatever_happens_to_the_cache(world: World) -> None:
    machines.run(lambda: CacheMachine(world), examples=8, steps=20)


@given(texts, texts, texts, texts, texts, texts)
def test_cache_keys_are_equal_exactly_if_model_options_and_texts_are_equal(
    identity, query, document, other, other_query, other_document
):
    key = score_keys(identity, query, [document], [(0,)])
    same = (identity, query, document) == (other, other_query, other_document)
    assert (key == score_keys(other, other_query, [other_document], [(0,)])) is same


@given(texts, texts, st.data())
def test_shifting_characters_between_two_texts_changes_the_cache_key(first, second, data):
    joined = first + second
    cut = data.draw(st.integers(0, len(joined)))
    key = score_keys("i", first, [second], [(0,)])
    assert (key == score_keys("i", joined[:cut], [joined[cut:]], [(0,)])) is (cut == len(first))
    pair = score_keys("i", "q", [first, second], [(0, 1)])
    assert (pair == score_keys("i", "q", [second, first], [(0, 1)])) is (first == second)
