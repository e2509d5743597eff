"""Which server is asked, where and how; batches by its limits, documents that it refuses, many threads at once."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest
from prometheus_client import REGISTRY

from osrerank import connect
from osrerank.errors import ConfigError, EndpointError, ModelLoadError, Overloaded
from osrerank.scoring.backends.http.dialects import DIALECTS
from osrerank.scoring.backends.http.target import Target
from osrerank.scoring.registry import load
from osrerank.settings import Settings
from osrerank.types import Deadline
from tests.rerank_server import Reply, answering, by_length
from tests.waiting import in_a_child

TEXTS = ["x" * (1 + index % 97) for index in range(500)]


def all_of(texts):
    return [(index,) for index in range(len(texts))]


def at_most(count, *, status=413):
    """Answer by length; refuse requests of more texts."""

    def answer(received):
        size = len(received.body["texts"])
        return Reply({"error": f"batch size {size} > {count}"}, status) if size > count else by_length(received)

    return answer


def sizes(server):
    return [len(received.body["texts"]) for received in server.received]


def refusing(refused, status=422, words="cannot be tokenized"):
    """Answer by length; refuse requests with one of these texts."""

    def answer(received):
        return Reply({"error": words}, status) if {*refused} & {*received.body["texts"]} else by_length(received)

    return answer


def test_batches_are_as_large_as_the_dialect_s_servers_take(scorer_of):
    with answering(at_most(32)) as server:
        scores = scorer_of(server.url).score("q", TEXTS, all_of(TEXTS))
        assert scores.values.tolist() == [len(text) for text in TEXTS]
        assert sorted(sizes(server)) == [20, *[32] * 15]
        server.received.clear()
        scorer_of(server.url, http={"batch": 7}).score("q", TEXTS, [(3,), (1,), *all_of(TEXTS[:10])])
        assert sorted(sizes(server)) == [5, 7]
    assert len(scorer_of("http://127.0.0.1:9").score("q", ["a"], []).values) == 0  # no server is needed for it


@pytest.mark.parametrize("status", [413, 422, 400])
def test_the_scorer_learns_a_smaller_batch_limit_of_the_server(scorer_of, status):
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
    texts = [f"{index} {'x' * index}" for index in range(32)]
    with answering(refusing([texts[index] for index in bad])) as server:
        scorer = scorer_of(server.url)
        scores = scorer.score("q", texts, all_of(texts))
        assert sorted(scores.failures) == bad
        assert "answered 422: cannot be tokenized" in scores.failures[bad[0]]
        good = [index for index in range(32) if index not in bad]
        assert scores.values[good].tolist() == [len(texts[index]) for index in good]
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


def test_documents_of_a_failed_batch_are_marked(scorer_of, caplog):
    texts = [*TEXTS[:32], *["other"] * 5, TEXTS[40]]
    with answering(refusing([TEXTS[40]], 500, "out of memory")) as server:
        scores = scorer_of(server.url).score("q", texts, all_of(texts))
    assert sorted(scores.failures) == list(range(32, 38))
    assert scores.values[:32].tolist() == [len(text) for text in TEXTS[:32]]
    assert "some documents were not scored" in caplog.text


def test_scores_that_arrive_before_the_deadline_count(scorer_of):
    released = threading.Event()

    def answer(received):
        if "slow" in received.body["texts"]:
            released.wait(5)
        return by_length(received)

    texts = [*TEXTS[:32], "slow", *TEXTS[:63]]
    with answering(answer) as server:
        scores = scorer_of(server.url).score("q", texts, all_of(texts), deadline=Deadline.after_ms(700))
        released.set()
    assert (scores.reached, scores.attempted, scores.failures) == (32, [*range(32), *range(64, 96)], {})


def test_scores_on_an_unexpected_scale_are_refused(scorer_of):
    def answer(received):
        score = 7.5 if "odd" in received.body["documents"] else 0.5
        return Reply(
            {"results": [{"index": index, "relevance_score": score} for index in range(received.body["top_n"])]}
        )

    texts = [*["even"] * 256, "odd"]
    with answering(answer) as server, pytest.raises(EndpointError, match='set scores = "logit"'):
        scorer_of(server.url, "vllm").score("q", texts, all_of(texts))


def test_halves_of_surrogate_pairs_are_not_sent(scorer_of):
    with answering(by_length) as server:
        scorer_of(server.url).score("q \udc00", ["a\ud800b", "\U0001f600"], all_of("ab"))
    assert server.received[0].body["query"] == "q ?"
    assert server.received[0].body["texts"] == ["a?b", "\U0001f600"]


def test_many_threads_share_a_scorer_of_a_rerank_server(scorer_of):
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
        assert in_a_child(lambda: scorer.score("q", ["abc"], [(0,)]).values.tolist() == [3.0])
        assert scorer.score("q", ["ab"], [(0,)]).values.tolist() == [2.0]
    assert server.connections == 2


def test_a_server_is_checked_at_its_own_address_while_it_works_and_by_a_pair_after_a_failure(scorer_of):
    replies = {"POST": None, "GET": None}
    with answering(
        lambda received: replies[received.method] or (Reply({}) if received.method == "GET" else by_length(received))
    ) as server:
        scorer = scorer_of(server.url)

        def asked():
            server.received.clear()
            try:
                scorer.check_server()
            except (EndpointError, Overloaded) as error:
                return [received.path for received in server.received], str(error).partition(" answered ")[2]
            return [received.path for received in server.received], ""

        assert asked() == (["/rerank"], "")
        assert asked() == (["/health"], "")
        replies["GET"] = Reply({}, 503)  # a check that fails is not believed before a pair has failed
        assert asked() == (["/health", "/rerank"], "")
        replies["POST"] = Reply({}, 503)
        assert asked() == (["/health", "/rerank"], "503")
        replies["POST"] = Reply({}, 429, (("Retry-After", "20"),))
        assert asked() == (["/rerank"], "429")
        assert asked() == ([], "429; retry in 20 s")


TWO = [(0,), (1,)]


@pytest.fixture
def target(settings_of):
    """Return a function from an address and a dialect to the server that they tell."""

    def target_of(url, dialect="auto", model="m"):
        return Target.from_settings(settings_of(url, dialect), model)

    return target_of


@pytest.mark.parametrize(
    ("url", "dialect", "address"),
    [
        ("https://api.cohere.com", "cohere-v2", "https://api.cohere.com/v2/rerank"),
        ("https://api.cohere.com/v2/", "cohere-v2", "https://api.cohere.com/v2/rerank"),
        ("https://api.cohere.com/v1", "cohere-v1", "https://api.cohere.com/v1/rerank"),
        ("https://api.jina.ai/v1/rerank", "jina", "https://api.jina.ai/v1/rerank"),
        ("https://api.voyageai.com/v1", "voyage", "https://api.voyageai.com/v1/rerank"),
        ("http://gpu:8000/score", "vllm-score", "http://gpu:8000/score"),
        ("http://gpu:8000/v2/rerank", "cohere-v2", "http://gpu:8000/v2/rerank"),
        ("http://gateway/some/v1/rerank", "jina", "http://gateway/some/v1/rerank"),
    ],
)
def test_the_path_of_an_address_selects_the_dialect(target, url, dialect, address):
    detected = target(url)
    assert detected.dialect is DIALECTS[dialect]
    assert detected.request_url(detected.dialect) == address
    assert target("http://evilcohere.com").dialect is None


PATHS = {"tei": "/rerank", "osrerank": "/rerank", "vllm": "/rerank", "vllm-score": "/score", "cohere-v1": "/v1/rerank"}


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_a_named_dialect_has_its_path(target, dialect, path):
    detected = target("http://gpu:8000", dialect)
    assert detected.request_url(detected.dialect) == f"http://gpu:8000{path}"


def test_the_scorers_identity_differs_by_server_dialect_and_model_and_hides_the_address(target):
    detected = {
        target(url, dialect, model).identity
        for url, dialect, model in product(("http://a", "http://b"), ("auto", "vllm"), "mn")
    }
    assert len(detected) == 8
    assert not any("//" in identity for identity in detected)


@pytest.mark.parametrize(
    "url", ["http://user:secret@host", "http://host?key=secret", "http://host#secret", "ftp://host", "http://", "h ost"]
)
def test_no_error_shows_credentials_of_the_address_or_the_key(target, url):
    with pytest.raises(ConfigError, match=r"toml \[http\] url: .*set an API key in OSRERANK_RERANK_KEY") as caught:
        target(url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        Settings.load(rerank_key="se cret\n")  # which would break a header
    assert "se cret" not in str(caught.value)
    assert "hidden" not in repr(Settings.load(rerank_key="hidden"))


def test_missing_settings_of_a_rerank_server_are_named_when_a_client_is_made(settings_of):
    with pytest.raises(ConfigError, match=r"needs a rerank server: set url in \[http\] of osrerank.toml"):
        connect("http://localhost:9", backend="http")
    with pytest.raises(ConfigError, match="dialect cohere-v2 needs the server's name for the model: set --model"):
        Target.from_settings(settings_of("https://api.cohere.com", "auto"), Settings.load().model)


def test_a_rerank_server_refuses_pairs_in_one_sentence(scorer_of, settings_of):
    with pytest.raises(
        ModelLoadError, match="cannot compare pairs of documents; use a pipeline without duo, or another backend"
    ):
        load(settings_of("http://localhost:9"), ("duo",))
    with pytest.raises(ValueError, match="single documents"):
        scorer_of("http://localhost:9").score("q", ["a", "b"], [(0, 1)])


def test_tei_and_osrerank_servers_state_their_model_and_batch_limit(scorer_of):
    def tei(received):
        if received.path == "/info":
            return Reply({"model_id": "BAAI/bge-reranker-base", "max_client_batch_size": 2, "version": "1.8"})
        return by_length(received)

    with answering(tei) as server:
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        scorer = scorer_of(server.url, "auto")
        assert scorer.score("q", texts, [(index,) for index in range(5)]).values.tolist() == [1, 2, 3, 4, 5]
        scorer.score("q", texts, TWO)
    assert Counter(received.path for received in server.received) == {"/info": 1, "/rerank": 4}


def test_a_vllm_server_is_recognised_by_its_models(scorer_of):
    def vllm(received):
        if received.path == "/v1/models":
            return Reply({"object": "list", "data": [{"id": "Qwen/Qwen3-Reranker-0.6B", "owned_by": "vllm"}]})
        if received.path == "/rerank":
            return Reply({"results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.5}]})
        return Reply({"detail": "Not Found"}, 404)

    with answering(vllm) as server:
        scores = scorer_of(server.url, "auto").score("q", ["a", "b"], TWO)
    assert scores.values.tolist() == pytest.approx([0.0, 2.1972246])
    silent = answering(lambda _received: Reply({"detail": "Not Found"}, 404))  # which is not guessed
    with silent as server, pytest.raises(EndpointError, match="does not report its dialect; set dialect in"):
        scorer_of(server.url, "auto").score("q", ["a"], [(0,)])
