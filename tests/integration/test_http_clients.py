"""The client libraries of other rerankers, pointed at our server; and requests as they are documented, byte by byte."""

import warnings

import httpx
import pytest

from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import NEVER
from tests.http_server import running

QUERY = "what lowers blood pressure"
TEXTS = [
    "The plague killed a third of Europe.",
    "Dehydration and some drugs make blood pressure drop.",
    "Salt keeps water in the body.",
    'He said "low", with a \\ and a tab\t.',
]


@pytest.fixture(scope="module")
def server():
    with running() as url:
        yield url


@pytest.fixture(scope="module")
def expected():
    """Probabilities by the model itself."""
    reranker = RerankService(Settings.load())
    scores = reranker.score(QUERY, TEXTS, NEVER)
    yield [float(value) for value in reranker.model.probabilities(scores.values)]
    reranker.close()


def best_first(expected):
    return sorted(range(len(TEXTS)), key=lambda place: -expected[place])


@pytest.fixture(scope="module")
def cohere():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import cohere
    return cohere


def test_coheres_client_reranks_on_our_server(server, expected, cohere):
    with httpx.Client() as connections:
        client = cohere.ClientV2(api_key="any", base_url=server, httpx_client=connections)
        answer = client.rerank(model="rerank-v3.5", query=QUERY, documents=TEXTS, top_n=3)
        with pytest.raises(cohere.errors.UnprocessableEntityError):
            client.rerank(model="m", query=" ", documents=TEXTS)
    assert [item.index for item in answer.results] == best_first(expected)[:3]
    scores = [item.relevance_score for item in answer.results]
    assert scores == pytest.approx([expected[doc_index] for doc_index in best_first(expected)[:3]], abs=1e-6)
    assert answer.meta.billed_units.search_units == 1


def test_cohere_s_first_client(server, expected, cohere):
    documents = [{"text": text} for text in TEXTS]
    with httpx.Client() as connections:
        client = cohere.Client(api_key="any", base_url=server, httpx_client=connections)
        answer = client.rerank(model="m", query=QUERY, documents=documents, return_documents=True)
    assert [item.document.text for item in answer.results] == [TEXTS[doc_index] for doc_index in best_first(expected)]
