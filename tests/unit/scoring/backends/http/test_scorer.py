"""Batches by a server's limits, documents that it refuses, and many threads at once."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client import REGISTRY

from osrerank.errors import EndpointError, Overloaded
from osrerank.types import Deadline
from tests.rerank_server import Reply, answering, by_length

TEXTS = ["x" * (1 + at % 97) for at in range(500)]


def all_of(texts):
    return [(at,) for at in range(len(texts))]


def at_most(count, *, status=413):
    """Answer by length; refuse requests of more texts."""

    def answer(received):
        if len(received.body["texts"]) > count:
            return Reply({"error": f"batch size {len(received.body['texts'])} > {count}"}, status)
        return by_length(received)

    return answer


def without(*bad, status=422):
    """Answer by length; refuse requests with one of these texts."""

    def answer(received):
        if set(bad) & set(received.body["texts"]):
            return Reply({"error": "cannot be tokenized"}, status)
        return by_length(received)

    return answer


def sizes(server):
    return [len(received.body["texts"]) for received in server.received]


def test_no_documents_need_no_server(scorer_of):
    assert len(scorer_of("http://127.0.0.1:9").score("q", ["a"], []).values) == 0


def test_batches_are_as_large_as_the_dialect_s_servers_take(scorer_of):
    with answering(at_most(32)) as server:
        scores = scorer_of(server.url).score("q", TEXTS, all_of(TEXTS))
        assert scores.values.tolist() == [len(text) for text in TEXTS]
        assert sorted(sizes(server)) == [20, *[32] * 15]
        server.received.clear()
        scorer_of(server.url, rerank_batch=7).score("q", TEXTS, [(3,), (1,), *all_of(TEXTS[:10])])
        assert sorted(sizes(server)) == [5, 7]


@pytest.mark.parametrize("status", [413, 422, 400])
def test_a_server_that_takes_less_is_learnt_of(scorer_of, status):
    with answering(at_most(10, status=status)) as server:
        scorer = scorer_of(server.url)
        assert scorer.score("q", TEXTS[:64], all_of(TEXTS[:64])).values.tolist() == [len(text) for text in TEXTS[:64]]
        server.received.clear()
        scorer.score("q", TEXTS, all_of(TEXTS))
        assert max(sizes(server)) <= 10


def test_long_texts_are_sent_in_smaller_batches(scorer_of):
    texts = ["word " * 60_000] * 30
    with answering(by_length) as server:
        values = scorer_of(server.url).score("q", texts, all_of(texts)).values
    assert max(sum(map(len, received.body["texts"])) for received in server.received) <= 4 << 20
    assert set(values) == {262_145.0}


@pytest.mark.parametrize("bad", [[0], [31], [0, 1], [13, 14, 30]])
def test_a_document_that_the_server_refuses_fails_alone(scorer_of, bad):
    texts = [f"{at} {'x' * at}" for at in range(32)]
    with answering(without(*(texts[at] for at in bad))) as server:
        scorer = scorer_of(server.url)
        scores = scorer.score("q", texts, all_of(texts))
        assert sorted(scores.failures) == bad
        assert "answered 422: cannot be tokenized" in scores.failures[bad[0]]
        good = [at for at in range(32) if at not in bad]
        assert scores.values[good].tolist() == [len(texts[at]) for at in good]
        assert np.isnan(scores.values[bad]).all()
        assert len(server.received) < 40
        scorer.score("q", TEXTS[:32], all_of(TEXTS[:32]))
    assert sizes(server)[-1] == 32  # it was not a matter of size


def test_a_server_that_refuses_everything_is_not_asked_for_each_document(scorer_of):
    before = REGISTRY.get_sample_value("osrerank_batch_halvings_total")
    refused, expected = Reply({"error": "no such model"}, 422), pytest.raises(EndpointError, match="no such model")
    with answering(lambda _received: refused) as server, expected:
        scorer_of(server.url, "osrerank").score("q", TEXTS, all_of(TEXTS))
    assert len(server.received) < 2 * 10
    assert REGISTRY.get_sample_value("osrerank_batch_halvings_total") > before


def test_a_batch_that_fails_marks_its_documents(scorer_of, caplog):
    def answer(received):
        return Reply({"error": "out of memory"}, 500) if TEXTS[40] in received.body["texts"] else by_length(received)

    texts = [*TEXTS[:32], *["other"] * 5, TEXTS[40]]
    with answering(answer) as server:
        scores = scorer_of(server.url).score("q", texts, all_of(texts))
    assert sorted(scores.failures) == list(range(32, 38))
    assert scores.values[:32].tolist() == [len(text) for text in TEXTS[:32]]
    assert "a part of the documents was not scored" in caplog.text


def test_what_comes_in_time_counts(scorer_of):
    released = threading.Event()

    def answer(received):
        if "slow" in received.body["texts"]:
            released.wait(5)
        return by_length(received)

    texts = [*TEXTS[:32], "slow", *TEXTS[:63]]
    with answering(answer) as server:
        scores = scorer_of(server.url).score("q", texts, all_of(texts), deadline=Deadline.after_ms(700))
        released.set()
    assert scores.reached == 32
    assert scores.attempted == [*range(32), *range(64, 96)]
    assert scores.failures == {}


def test_scores_on_another_scale_than_expected_score_nothing(scorer_of):
    def answer(received):
        score = 7.5 if "odd" in received.body["documents"] else 0.5
        return Reply({"results": [{"index": at, "relevance_score": score} for at in range(received.body["top_n"])]})

    texts = [*["even"] * 256, "odd"]
    with answering(answer) as server, pytest.raises(EndpointError, match="set OSRERANK_RERANK_SCORES=logit"):
        scorer_of(server.url, "vllm").score("q", texts, all_of(texts))


def test_halves_of_surrogate_pairs_are_not_sent(scorer_of):
    with answering(by_length) as server:
        scorer_of(server.url).score("q \udc00", ["a\ud800b", "\U0001f600"], all_of("ab"))
    assert server.received[0].body["query"] == "q ?"
    assert server.received[0].body["texts"] == ["a?b", "\U0001f600"]


def test_many_threads_share_a_scorer(scorer_of):
    with answering(at_most(32)) as server:
        scorer = scorer_of(server.url)

        def ask(seed):
            texts = TEXTS[seed : seed + 100]
            return scorer.score(f"q{seed}", texts, all_of(texts)).values.tolist() == [len(text) for text in texts]

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(ask, range(160)))
        assert len(server.received) == 160 * 4
        assert server.connections <= 64


@pytest.mark.long
def test_a_forked_child_has_connections_of_its_own(scorer_of):
    with answering(by_length) as server:
        scorer = scorer_of(server.url)
        scorer.score("q", ["a"], [(0,)])
        child = os.fork()
        if child == 0:
            os._exit(0 if scorer.score("q", ["abc"], [(0,)]).values.tolist() == [3.0] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert scorer.score("q", ["ab"], [(0,)]).values.tolist() == [2.0]
    assert server.connections == 2


def test_a_server_is_checked_at_its_own_address_while_it_works_and_by_a_pair_after_a_failure(scorer_of):
    replies = {"POST": None, "GET": None}
    with answering(lambda it: replies[it.method] or (Reply({}) if it.method == "GET" else by_length(it))) as server:
        scorer = scorer_of(server.url)

        def asked():
            server.received.clear()
            try:
                scorer.check_server()
            except (EndpointError, Overloaded) as error:
                return [it.path for it in server.received], str(error).partition(" answered ")[2]
            return [it.path for it in server.received], ""

        assert asked() == (["/rerank"], "")
        assert asked() == (["/health"], "")
        replies["GET"] = Reply({}, 503)  # a check that fails is not believed before a pair has failed
        assert asked() == (["/health", "/rerank"], "")
        replies["POST"] = Reply({}, 503)
        assert asked() == (["/health", "/rerank"], "503")
        replies["POST"] = Reply({}, 429, (("Retry-After", "20"),))
        assert asked() == (["/rerank"], "429")
        assert asked() == ([], "429; retry in 20 s")
