"""Pages of one list join although its order may not come again: no hit twice, none lost."""

import asyncio
import random
import zlib
from functools import partial
from itertools import pairwise

import pytest
from redis import Redis

from osrerank import Rerank
from osrerank.aio import connect_async
from osrerank.errors import InferenceError
from osrerank.search import orders
from osrerank.search.orders import MAY_OVERLAP, TTL_S, Order, OrderStore
from osrerank.testing import CannedTransport, ManualClock
from osrerank.thresholds.calibration import IndexCalibration, mapping_digest, model_digest, write_calibration
from osrerank.thresholds.maps import Platt
from tests import rankings
from tests.rankings import ids, response_of
from tests.unit.search.test_default_deadline import SlowLetters, nothing_is_kept  # noqa: F401 - a fixture

TEXTS = ["low " * (number % 7) + "pressure " * (number % 11 + 1) + str(number) for number in range(60)]
PARTIAL = {"deadline_ms": 400, "blend": "replace"}


class Paced(SlowLetters):
    """An encoder whose documents take a time that a test may change."""

    pace_s, is_broken = 0.02, False

    def __init__(self):
        super().__init__(self)
        self.real = ManualClock()

    def sleep(self, _seconds):
        if self.is_broken:
            raise InferenceError("broken on purpose")
        self.real.sleep(self.pace_s)


class Alone(CannedTransport):
    """Takes the authentication that a client is made with."""

    def __init__(self, hosts=None, **options):
        super().__init__(hosts, **options)
        self.kwargs = options


@pytest.fixture
def encoder():
    return Paced()


@pytest.fixture
def client(encoder):
    return client_for(encoder)


def client_for(encoder, **options):
    return rankings.client_for(TEXTS, encoder, clock=encoder.real, **{"transport_class": Alone, **options})


def page(client, start=0, rerank=PARTIAL, size=10, **options):
    return client.search("low pressure", index="notes", rerank=rerank, from_=start, size=size, **options)


def assert_joined(pages, size=60):
    doc_ids = [doc_id for response in pages for doc_id in ids(response)]
    assert len(doc_ids) == len(set(doc_ids)) == size
    scores = [hit["_score"] for response in pages for hit in response["hits"]["hits"]]
    assert all(before >= after for before, after in pairwise(scores))


def joined(encoder, page, more=0.001):
    """Assert that pages join although documents take another time after the first; return them all."""
    pages = [page(0)]
    encoder.pace_s = more
    pages += [page(start) for start in range(10, 60, 10)]
    assert_joined(pages)
    return pages


@pytest.mark.parametrize("more", [0.001, 0.5])
def test_pages_join_although_each_search_scores_more_or_fewer_hits(client, encoder, more):
    pages = joined(encoder, partial(page, client), more)
    marks = pages[0]["rerank"]
    assert marks["stages"][0]["lacking"] == 40
    for response in pages[1:]:
        assert (response["rerank"]["applied"], response["rerank"]["reason"]) == ("partial", marks["reason"])
        assert response["rerank"]["stages"][0]["inferences"] == 0


def test_pages_join_if_the_first_page_was_not_reranked(client, encoder):
    encoder.is_broken = True
    first_page = page(client)
    assert first_page["rerank"]["applied"] is False
    encoder.is_broken = False
    pages = [first_page, *(page(client, start) for start in range(10, 60, 10))]
    assert_joined(pages)


def test_a_later_page_that_fails_warns_that_pages_may_not_join(client, encoder):
    encoder.pace_s = 0.001
    assert page(client)["rerank"]["applied"] is True
    encoder.is_broken = True
    report = page(client, 10)["rerank"]
    assert (report["applied"], report["warnings"]) == (True, [])
    encoder.real.sleep(TTL_S + 1)
    failed_report = page(client, 10)["rerank"]
    assert (failed_report["applied"], failed_report["warnings"]) == (False, [MAY_OVERLAP])


@pytest.mark.parametrize("seed", range(8))
def test_pages_join_however_much_time_each_search_takes(client, encoder, seed):
    draw, pages = random.Random(seed), []
    for start in range(0, 60, 10):
        encoder.pace_s, encoder.is_broken = draw.choice([0.0001, 0.01, 0.1, 1]), draw.random() < 0.2
        pages.append(page(client, start))
    assert_joined(pages)
    assert len({response["hits"]["max_score"] for response in pages}) == 1


def test_a_search_for_the_first_page_computes_a_new_order(client, encoder):
    before = ids(page(client, size=60))
    encoder.pace_s = 0.01
    after = ids(page(client, size=60))
    assert after != before
    assert ids(page(client, 20)) == after[20:30]
    encoder.pace_s = 0.001
    complete_page = page(client, size=60)
    assert complete_page["rerank"]["applied"] is True
    assert ids(page(client, 20)) == ids(complete_page)[20:30]


def test_an_incomplete_order_is_kept_for_a_minute_after_its_last_use(client, encoder):
    first = ids(page(client, size=60))
    encoder.pace_s = 0.01
    for start in (10, 20):
        encoder.real.sleep(TTL_S - 1)
        assert ids(page(client, start)) == first[start : start + 10]
    encoder.real.sleep(TTL_S + 1)
    late = page(client, 30)
    assert late["rerank"]["warnings"] == [MAY_OVERLAP]
    assert late["rerank"]["stages"][0]["inferences"] > 0


def test_new_hits_come_last_and_lost_hits_leave_the_order_unchanged(client, encoder):
    first = ids(page(client, size=60))
    gone = {first[3], first[12], first[40]}
    fresh = ["new " + text for text in TEXTS[:2]]
    answer = response_of([*fresh, *TEXTS])
    for hit, name in zip(answer["hits"]["hits"], ["x0", "x1", *(f"d{index}" for index in range(60))], strict=True):
        hit["_id"] = name
    answer["hits"]["hits"] = [hit for hit in answer["hits"]["hits"] if hit["_id"] not in gone]
    answer["hits"]["total"]["value"] = len(answer["hits"]["hits"])
    client.transport.answer = answer
    later = [page(client, start) for start in range(10, 70, 10)]
    assert ids(later[0]) == [name for name in first[10:20] if name not in gone]
    assert ids(later[-1]) == ["x0", "x1"]
    assert_joined(later, 60 - 10 - 2 + 2)


def test_a_kept_order_shows_only_hits_that_the_caller_may_see(client):
    page(client)
    answer = response_of(TEXTS)
    for hit in answer["hits"]["hits"]:
        hit["_source"] = {"text": "only now"}
    client.transport.answer = answer
    assert {hit["_source"]["text"] for hit in page(client, 10)["hits"]["hits"]} == {"only now"}


@pytest.mark.parametrize(
    "other",
    [
        {"headers": {"Authorization": "of somebody else"}},
        {"rerank": {**PARTIAL, "depth": 50}},
        {"rerank": {**PARTIAL, "min_score": 0.1}},
        {"body": {"post_filter": {"term": {"tag": "a"}}}},
        {"params": {"routing": "a"}},
        {"index": "others"},
        {"query": "another query"},
    ],
)
def test_searches_with_other_options_have_their_own_order(client, other):
    page(client)
    search_arguments = {"query": "low pressure", "index": "notes", "rerank": PARTIAL, "from_": 10, "size": 10, **other}
    assert client.search(**search_arguments)["rerank"]["warnings"] == [MAY_OVERLAP]


@pytest.mark.parametrize(("identity", "model"), [("letters-2", None), ("letters-1", "another")])
def test_another_model_has_its_own_order(client, identity, model):
    paced = Paced()
    paced.identity = identity
    other_client = client_for(paced, model=model)
    other_client.searcher.orders = client.searcher.orders
    page(client)
    assert page(other_client, 10)["rerank"]["warnings"] == [MAY_OVERLAP]
    assert page(client, 10)["rerank"]["warnings"] == []


def test_another_calibration_has_its_own_order(client, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rerank = Rerank(**PARTIAL, min_probability=0.1, fields=("text",), query_fields=("text",))
    model = model_digest(client.searcher.service.identity(rerank), rerank)
    mapping = mapping_digest(client.indices.get_mapping(index="notes"), rerank)
    steep, steeper = (IndexCalibration("vectors", Platt(slope, 0.0), model, mapping) for slope in (1.0, 20.0))
    write_calibration(client.searcher.calibrations.file, "notes", steep)
    page(client, rerank=rerank)
    assert page(client, 10, rerank)["rerank"]["warnings"] == []
    write_calibration(client.searcher.calibrations.file, "notes", steeper)
    second = page(client, 10, rerank)["rerank"]
    assert (second["cuts"][0]["applied"], second["warnings"]) == (True, [MAY_OVERLAP])


@pytest.mark.parametrize(
    "shown", [{"headers": {"X-Opaque-Id": "7"}}, {"_source": False}, {"size": 5}, {"track_total_hits": True}]
)
def test_highlights_and_source_do_not_change_which_order_is_used(client, shown):
    first = ids(page(client, size=60))
    assert ids(page(client, 10, **shown)) == first[10 : 10 + shown.get("size", 10)]


def test_an_order_of_depth_auto_is_kept(client):
    _, second_page = (page(client, start, {"depth": "auto", "deadline_ms": None}) for start in (0, 10))
    assert (second_page["rerank"]["applied"], second_page["rerank"]["stages"][0]["inferences"]) == (True, 0)


def test_a_threshold_cuts_the_kept_list_on_every_page(client, encoder):
    rerank = {**PARTIAL, "min_score": 0.1}
    whole_page = page(client, rerank=rerank, size=60)
    encoder.pace_s = 0.01
    second = page(client, 10, rerank)
    assert ids(second) == ids(whole_page)[10:20]
    assert second["rerank"]["below_min_score"] == whole_page["rerank"]["below_min_score"] == 0
    assert len(ids(whole_page)) == 60  # the 40 that were not reached are not below


def test_pages_of_interleaved_lists_join(client, encoder):
    rerank = {**PARTIAL, "interleave": {"with": {"depth": 5}, "key": "reader"}}
    joined_pages = joined(encoder, lambda start: page(client, start, rerank), 0.0001)
    assert not any(page_ids["rerank"]["interleave"]["applied"] for page_ids in joined_pages)


def test_pages_of_a_multi_search_join_with_later_pages(client, encoder):
    client.transport.answer = {"took": 1, "responses": [response_of(TEXTS)]}

    def one(start):
        body = [{"index": "notes"}, {"query": {"match": {"text": "low pressure"}}, "from": start, "size": 10}]
        return client.msearch(body=body, rerank=PARTIAL)["responses"][0]

    joined(encoder, one)


def test_pages_of_an_asynchronous_client_join(encoder):
    class AsyncAlone(Alone):
        async def perform_request(self, *args, **options):
            return super().perform_request(*args, **options)

    options = {"transport_class": AsyncAlone, "answer": response_of(TEXTS), "scorer": encoder, "clock": encoder.real}
    client = connect_async("http://localhost:1", **options)
    joined(encoder, lambda start: asyncio.run(page(client, start)))


def test_processes_share_kept_orders_in_redis(encoder, redis_url):
    here, second_client = (client_for(encoder, redis_url=redis_url) for _ in range(2))
    first = ids(page(here, size=60))
    encoder.pace_s = 0.001
    assert ids(page(second_client, 20)) == first[20:30]
    all_ids = ids(page(second_client, size=60))
    assert all_ids != first
    assert ids(page(here, 20)) == all_ids[20:30]
    strange = client_for(encoder, redis_url=redis_url, http_auth=("somebody", "else"))
    encoder.pace_s = 0.02
    page(here)
    assert page(strange, 20)["rerank"]["warnings"] == [MAY_OVERLAP]


def test_redis_keeps_ids_and_scores_without_texts_for_a_minute(encoder, redis_url):
    store = Redis.from_url(redis_url)
    store.flushdb()
    first = page(client_for(encoder, redis_url=redis_url))
    (key,) = store.keys(f"{orders.PREFIX}*")
    assert 0 < store.ttl(key) <= 60
    content = zlib.decompress(store.get(key)).decode()
    assert f'"notes/{ids(first)[0]}"' in content
    assert "pressure" not in content


def test_with_a_signing_key_pages_follow_no_forged_moved_or_unsigned_order_in_redis(redis_url):
    store = Redis.from_url(redis_url)
    keys = b"k" * 32, b"l" * 32
    ours, newer, unsigned = (OrderStore(redis_url, signing_keys=given) for given in (keys[:1], keys[::-1], ()))
    order = Order('{"identity": ""}', [["notes/1", "", []]])
    ours.write("a", order)
    assert ours.read("a") == newer.read("a") == unsigned.read("a") == order
    newer.write("b", order)
    assert ours.read("b") is None
    store.set(f"{orders.PREFIX}c", store.get(f"{orders.PREFIX}a"))
    assert ours.read("c") is None
    unsigned.write("d", order)
    assert ours.read("d") is None
    for opened in (ours, newer, unsigned):
        opened.close()


def test_a_client_signs_orders_with_the_signing_key(encoder, redis_url, monkeypatch):
    monkeypatch.setenv("OSRERANK_SIGNING_KEY", "k" * 32)
    first = ids(page(client_for(encoder, redis_url=redis_url), size=60))
    encoder.pace_s = 0.001
    assert ids(page(client_for(encoder, redis_url=redis_url), 20)) == first[20:30]
    monkeypatch.setenv("OSRERANK_SIGNING_KEY", "l" * 32)
    assert page(client_for(encoder, redis_url=redis_url), 20)["rerank"]["applied"]
    assert ids(page(client_for(encoder, redis_url=redis_url), 20)) != first[20:30]


def test_without_redis_pages_within_a_process_join(encoder, caplog):
    client = client_for(encoder, redis_url="redis://127.0.0.1:1/0")
    first = ids(page(client, size=60))
    encoder.pace_s = 0.001
    assert ids(page(client, 20)) == first[20:30]
    assert sum("[orders-away]" in record.getMessage() for record in caplog.records) == 1


def test_orders_take_no_more_memory_than_their_limits(monkeypatch):
    monkeypatch.setattr(orders, "MAX_BYTES", 1_000)
    monkeypatch.setattr(orders, "MAX_ORDER_BYTES", 400)
    kept = OrderStore(clock=ManualClock())
    for number in range(20):
        kept.write(str(number), Order("x" * 80, []))
    assert [kept.read(str(number)) is None for number in (0, 8, 12, 19)] == [True, True, False, False]
    kept.write("19", Order("x" * 401, []))
    assert kept.read("19") is None


@pytest.mark.parametrize("content", [b"?", zlib.compress(b'["{}"]'), zlib.compress(b'["{}", [["notes/1"]]]')])
def test_a_later_page_is_computed_if_redis_has_something_else_than_an_order(encoder, redis_url, content):
    store = Redis.from_url(redis_url)
    store.flushdb()
    client = client_for(encoder, redis_url=redis_url)
    page(client)
    (key,) = store.keys(f"{orders.PREFIX}*")
    store.set(key, content)
    assert page(client, 10)["rerank"]["warnings"] == [MAY_OVERLAP]


def test_a_kept_order_has_all_stage_scores_of_its_hits(client, encoder):
    rerank = {"passages": {"words": 3, "stride": 2}, "deadline_ms": 60_000}
    whole_page, later = page(client, size=60, rerank=rerank), page(client, 20, rerank)
    assert later["hits"]["hits"] == whole_page["hits"]["hits"][20:30]
    assert later["rerank"]["stages"][0]["inferences"] == 0  # nothing was computed for it
