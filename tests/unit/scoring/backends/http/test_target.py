"""Which server is asked, where and how, told by its address."""

from collections import Counter
from itertools import product

import pytest

from osrerank import connect
from osrerank.errors import ConfigError, EndpointError, ModelLoadError
from osrerank.scoring.backends.http.dialects import DIALECTS
from osrerank.scoring.backends.http.target import Target
from osrerank.scoring.registry import load
from osrerank.settings import Settings
from tests.rerank_server import Reply, answering, by_length

TWO = [(0,), (1,)]


def target(url, dialect="auto", **options):
    return Target.of(Settings.load(backend="http", rerank_url=url, rerank_dialect=dialect, model="m", **options), "m")


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
def test_an_address_tells_the_dialect(url, dialect, address):
    found = target(url)
    assert found.dialect is DIALECTS[dialect]
    assert found.address(found.dialect) == address
    assert target("http://evilcohere.com").dialect is None


PATHS = {"tei": "/rerank", "osrerank": "/rerank", "vllm": "/rerank", "vllm-score": "/score", "cohere-v1": "/v1/rerank"}


@pytest.mark.parametrize(("dialect", "path"), PATHS.items())
def test_a_named_dialect_has_its_path(dialect, path):
    found = target("http://gpu:8000", dialect)
    assert found.address(found.dialect) == f"http://gpu:8000{path}"


def test_an_identity_tells_servers_dialects_and_models_apart_and_no_address():
    found = {
        Target.of(Settings.load(rerank_url=url, rerank_dialect=dialect), model).identity
        for url, dialect, model in product(("http://a", "http://b"), ("auto", "vllm"), "mn")
    }
    assert len(found) == 8
    assert not any("//" in identity for identity in found)


@pytest.mark.parametrize(
    "url", ["http://user:secret@host", "http://host?key=secret", "http://host#secret", "ftp://host", "http://", "h ost"]
)
def test_no_error_repeats_a_secret_of_an_address_or_a_key(url):
    with pytest.raises(ConfigError, match="a key goes into OSRERANK_RERANK_KEY") as caught:
        Settings.load(rerank_url=url)
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        Settings.load(rerank_key="se cret\n")  # which would break a header
    assert "se cret" not in str(caught.value)
    assert "hidden" not in repr(Settings.load(rerank_key="hidden"))


def test_what_is_missing_is_said_when_a_client_is_made():
    with pytest.raises(ConfigError, match="needs a rerank server: set OSRERANK_RERANK_URL"):
        connect("http://localhost:9", backend="http")
    with pytest.raises(ConfigError, match="dialect cohere-v2 needs the server's name for the model: set --model"):
        Target.of(Settings.load(rerank_url="https://api.cohere.com"), Settings.load().model)


def test_pairs_are_refused_in_one_sentence(scorer_of):
    with pytest.raises(ModelLoadError, match="compares no pairs: use a pipeline without duo, or another backend"):
        load(Settings.load(backend="http", rerank_url="http://localhost:9"), ("duo",))
    with pytest.raises(ValueError, match="single documents"):
        scorer_of("http://localhost:9").score("q", ["a", "b"], [(0, 1)])


def test_tei_and_osrerank_say_what_they_are_and_how_much_they_take(scorer_of):
    def tei(received):
        if received.path == "/info":
            return Reply({"model_id": "BAAI/bge-reranker-base", "max_client_batch_size": 2, "version": "1.8"})
        return by_length(received)

    with answering(tei) as server:
        texts = ["a", "bb", "ccc", "dddd", "eeeee"]
        scorer = scorer_of(server.url, "auto")
        assert scorer.score("q", texts, [(at,) for at in range(5)]).values.tolist() == [1, 2, 3, 4, 5]
        scorer.score("q", texts, TWO)
    assert Counter(received.path for received in server.received) == {"/info": 1, "/rerank": 4}


def test_vllm_is_known_by_its_models(scorer_of):
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
    with silent as server, pytest.raises(EndpointError, match="dialect it speaks: set OSRERANK_RERANK_DIALECT"):
        scorer_of(server.url, "auto").score("q", ["a"], [(0,)])
