"""The frameworks' rerankers in the frameworks themselves."""

import asyncio
import os
import warnings

import pytest

from osrerank.errors import ConfigError
from osrerank.testing import FunctionScorer

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read at import

with warnings.catch_warnings():  # the frameworks' own, at import
    warnings.simplefilter("ignore")
    from haystack import Document as HaystackDocument
    from haystack import Pipeline
    from langchain_core.documents import Document as LangChainDocument
    from llama_index.core.instrumentation import get_dispatcher
    from llama_index.core.instrumentation.event_handlers import BaseEventHandler
    from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

    from osrerank.adapters.haystack import OsrerankRanker
    from osrerank.adapters.langchain import OsrerankRerank as LangChainRerank
    from osrerank.adapters.llama_index import OsrerankRerank as LlamaIndexRerank

QUERY = "low blood pressure"
TEXTS = ["salt and water", "low blood pressure", "broken", "low salt diets"]
ORDER = [1, 3, 0, 2]  # by the share of the query's words; the broken one last
SCORER = FunctionScorer(unscorable=frozenset({"broken"}))
PROBABILITIES = [0.7310586, 0.5825702, 0.5, None]


def langchain_documents():
    return [LangChainDocument(page_content=text, metadata={"place": index}) for index, text in enumerate(TEXTS)]


def test_langchain_reranks_documents():
    documents = langchain_documents()
    compressor = LangChainRerank(scorer=SCORER)
    for ranked in (
        compressor.compress_documents(documents, QUERY),
        asyncio.run(compressor.acompress_documents(documents, QUERY)),
    ):
        assert [document.metadata["place"] for document in ranked] == ORDER
        scores = [document.metadata.get("relevance_score") for document in ranked]
        assert scores[:3] == pytest.approx(PROBABILITIES[:3])
        assert scores[3] is None
    assert "relevance_score" not in documents[1].metadata
    assert [d.page_content for d in LangChainRerank(scorer=SCORER, top_n=1).compress_documents(documents, QUERY)] == [
        TEXTS[1]
    ]
    assert compressor.compress_documents([], QUERY) == []


def test_langchain_never_shows_another_rerankers_score():
    documents = [LangChainDocument(page_content=text, metadata={"relevance_score": 0.9}) for text in TEXTS]
    ranked = LangChainRerank(scorer=SCORER).compress_documents(documents, QUERY)
    assert "relevance_score" not in ranked[3].metadata
    assert documents[2].metadata == {"relevance_score": 0.9}


def nodes():
    return [NodeWithScore(node=TextNode(text=text, id_=str(index)), score=9.0) for index, text in enumerate(TEXTS)]


class Seen(BaseEventHandler):
    events: list = []  # noqa: RUF012 - pydantic copies it

    def handle(self, event, **_):
        self.events.append(event.class_name())


def test_llama_index_reranks_nodes():
    input_nodes = nodes()
    seen = Seen()
    root = get_dispatcher("root")
    root.add_event_handler(seen)
    reranker = LlamaIndexRerank(scorer=SCORER, keep_retrieval_score=True)
    try:
        ranked = reranker.postprocess_nodes(input_nodes, query_str=QUERY)
    finally:
        root.event_handlers.remove(seen)
    assert seen.events == ["ReRankStartEvent", "ReRankEndEvent"]
    assert [int(node.node.node_id) for node in ranked] == ORDER
    assert [node.score for node in ranked[:3]] == pytest.approx(PROBABILITIES[:3])
    assert ranked[3].score is None
    assert all(node.node.metadata["retrieval_score"] == 9.0 for node in ranked)
    assert input_nodes[0].node.metadata == {}
    assert len(LlamaIndexRerank(scorer=SCORER, top_n=2).postprocess_nodes(input_nodes, QueryBundle(QUERY))) == 2
    assert asyncio.run(reranker.apostprocess_nodes(input_nodes, query_str=QUERY)) == ranked
    assert reranker.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(ValueError, match="needs the query"):
        reranker.postprocess_nodes(input_nodes)


def haystack_documents():
    return [HaystackDocument(id=str(index), content=text) for index, text in enumerate(TEXTS)]


def test_haystack_reranks_documents():
    ranker = OsrerankRanker(scorer=SCORER)
    ranked = ranker.run(QUERY, haystack_documents())["documents"]
    assert [int(document.id) for document in ranked] == ORDER
    assert [document.score for document in ranked[:3]] == pytest.approx(PROBABILITIES[:3])
    assert ranked[3].score is None
    assert asyncio.run(ranker.run_async(QUERY, haystack_documents(), top_k=2))["documents"] == ranked[:2]
    choosy = OsrerankRanker(scorer=SCORER, score_threshold=0.55)
    assert len(choosy.run(QUERY, haystack_documents())["documents"]) == 2
    with pytest.raises(ValueError, match="top_k"):
        ranker.run(QUERY, haystack_documents(), top_k=0)


def test_haystack_ranks_a_document_of_two_retrievers_once():
    documents = [
        HaystackDocument(id="a", content="low blood pressure", score=0.2),
        HaystackDocument(id="b", content="salt and water"),
        HaystackDocument(id="a", content="low blood pressure", score=0.5, meta={"from": "the second"}),
        HaystackDocument(id="b", content="salt and water", meta={"from": "the second"}),
    ]
    ranked = OsrerankRanker(scorer=SCORER, top_k=2).run(QUERY, documents)["documents"]
    assert [(document.id, document.meta) for document in ranked] == [("a", {"from": "the second"}), ("b", {})]


def test_a_stored_haystack_pipeline_reranks():
    pipeline = Pipeline()
    pipeline.add_component(
        "ranker", OsrerankRanker(model="osrerank/e5-small", top_k=2, options={"deadline_ms": 60_000})
    )
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["osrerank.adapters.haystack"])
    ranked = again.run({"ranker": {"query": QUERY, "documents": haystack_documents()}})["ranker"]["documents"]
    assert ranked[0].id == "1"
    assert len(ranked) == 2
    assert all(0 <= document.score <= 1 for document in ranked)


@pytest.mark.parametrize("kind", [LangChainRerank, LlamaIndexRerank, OsrerankRanker])
def test_adapters_check_options_when_they_are_made(kind):
    with pytest.raises(ConfigError, match="deadline"):
        kind(options={"deadline": 5})
