"""What the comparison page shows of a search: ranks, scores, marked passages, and measures."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank.server.page.comparison import (
    MAX_CHARACTERS,
    MAX_LEAD_CHARACTERS,
    TERM_END,
    TERM_START,
    _split_text,
    compare,
)
from osrerank.server.page.judgments import Judgments
from osrerank.types import Qrels, Query

ASKED = {"query": "q", "index": "i", "pipeline": "mono", "depth": 10}


def hit(doc_id, score, *, text="some text", title="A title", **marks):
    raw = {"_id": doc_id, "_index": "i", "_score": score, "_source": {"title": title, "text": text}}
    return {**raw, "_rerank": marks} if marks else raw


def response(*hits):
    marks = {"applied": True, "reason": None, "first_pass_took_ms": 3, "stages": []}
    return {"took": 10, "hits": {"total": {"value": 7, "relation": "gte"}, "hits": list(hits)}, "rerank": marks}


def mono(rank, before, **scores):
    mark = {"score": 1.5, "rank": rank, "probability": 0.8, **scores}
    return {"first_pass": {"score": 9.0 - before, "rank": before}, "mono": mark}


def reranked():
    return response(hit("b", 1.8, **mono(1, 2)), hit("a", 1.7, **mono(2, 1)))


def test_the_comparison_shows_ranks_and_scores_of_both_orders():
    outcome = compare(reranked(), ASKED, ("title", "text"), None)
    assert [(document.doc_id, document.before, document.after) for document in outcome.documents] == [
        ("b", 2, 1),
        ("a", 1, 2),
    ]
    assert [document.first_pass_score for document in outcome.documents] == [7.0, 8.0]
    assert [document.score for document in outcome.documents] == [1.8, 1.7]
    assert [stage.model_dump() for stage in outcome.documents[0].stages] == [
        {"stage": "mono", "score": 1.5, "rank": 1, "probability": 0.8}
    ]
    assert (outcome.total, outcome.total_is_least, outcome.judged) == (7, True, None)


def test_the_comparison_marks_the_passage_and_value_that_decided():
    passage = {"field": "text", "start": 4, "end": 9}
    raw = response(hit("a", 1.8, text="one 🦆 two three", **mono(1, 1, passage=passage)))
    (document,) = compare(raw, ASKED, ("title", "text"), None).documents
    assert document.title == "A title"
    assert document.passage is not None
    assert document.passage.model_dump() == passage
    marks = [(part.text, part.marked) for part in document.parts]
    assert marks == [("one ", False), ("🦆 two", True), (" three", False)]
    passage = {"field": "text", "start": 0, "end": 3, "value": 1}
    raw = response(hit("a", 1.8, text=["one", "two"], **mono(1, 1, passage=passage)))
    (document,) = compare(raw, ASKED, ("text",), None).documents
    assert [part.text for part in document.parts if part.marked] == ["two"]


@given(st.integers(0, 20_000), st.data())
def test_a_long_text_is_cut_around_the_deciding_passage(length, data):
    text = "".join(chr(97 + offset % 26) for offset in range(length))
    start = data.draw(st.integers(0, length))
    end = data.draw(st.integers(start, length))
    first = data.draw(st.integers(0, length))
    term = (first, min(first + 5, length))
    parts = _split_text(text, (start, end), MAX_CHARACTERS, [term])
    joined = "".join(part.text for part in parts).strip("…")
    assert joined in text
    assert len(joined) == min(length, MAX_CHARACTERS)
    assert "".join(part.text for part in parts if part.is_term) in text[slice(*term)]
    marked = "".join(part.text for part in parts if part.marked)
    assert text[start:end].startswith(marked.strip("…"))
    assert (
        len(marked) == min(end - start, MAX_CHARACTERS - MAX_LEAD_CHARACTERS)
        or len(marked) > MAX_CHARACTERS - MAX_LEAD_CHARACTERS
    )


def test_the_comparison_marks_the_words_that_the_query_matched():
    response = reranked()
    begin, end = TERM_START, TERM_END
    for hit in response["hits"]["hits"]:
        source = hit["_source"]
        hit["highlight"] = {name: [f"{begin}{text[:3]}{end}{text[3:]}"] for name, text in source.items() if text}
    response["hits"]["hits"][0]["highlight"]["text"].append(f"of another {begin}text{end}")
    for document in compare(response, ASKED, ("title", "text"), None).documents:
        for parts in (document.title_parts, document.parts):
            if parts:
                assert (len(parts[0].text), parts[0].is_term) == (3, True)
                assert not any(part.is_term for part in parts[1:])
        assert "".join(part.text for part in document.title_parts) == document.title


def test_measures_of_both_orders_of_the_page_by_hand():
    judgments = Judgments((Query("7", "What  is Q"),), Qrels({"7": {"b": 1, "absent": 1, "a": 0}}))
    judged = judgments.find_judgments("what is q")
    assert judged is not None
    outcome = compare(reranked(), ASKED, ("title", "text"), judged)
    assert [document.relevance for document in outcome.documents] == [1, 0]
    assert outcome.judged is not None
    assert (outcome.judged.query_id, outcome.judged.relevant, outcome.judged.found) == ("7", 2, 1)
    measures = {line.name: (line.before, line.after) for line in outcome.judged.measures}
    assert measures["RR@10"] == (0.5, 1.0)
    assert measures["nDCG@10"] == (pytest.approx(0.6309 / 1.6309, abs=1e-4), pytest.approx(1 / 1.6309, abs=1e-4))
