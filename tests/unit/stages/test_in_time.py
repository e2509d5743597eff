"""Cutting counts as scoring does: when the deadline passes, at most one more document is cut."""

import pytest

from osrerank.scoring.passages import score_parts
from osrerank.testing import ArithmeticEncoder, FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline, LongText, Span
from osrerank.vectors.documents import DocumentVectors
from tests.bi_encoders import carded
from tests.memory_store import MemoryStore
from tests.unit.vectors.test_documents import opened

CUT_S = 1.0
"""Time that it takes to cut a part."""


def document(clock: ManualClock, number: int, parts: int):
    """Yield the parts of a document, each cut when it is asked for."""
    for part in range(parts):
        clock.sleep(CUT_S)
        yield f"document {number} part {part}", Span("text", part, part + 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0)


@pytest.mark.parametrize("deadline_s", [0.5, 3, 10, 25])
@pytest.mark.parametrize("counts", [[1] * 40, [40, 1, 1, 1], [100], [3, 50, 2]])
def test_no_document_is_cut_after_the_deadline(clock, counts, deadline_s):
    documents = [document(clock, number, count) for number, count in enumerate(counts)]
    scores = score_parts(FunctionScorer(), "part", documents, deadline=Deadline.after_ms(1000 * deadline_s, clock))
    assert clock() <= max(deadline_s, CUT_S)
    assert scores.unread > 0
    assert (deadline_s > CUT_S) <= scores.attempted <= scores.asked <= deadline_s + 1


def test_passages_cut_before_the_deadline_are_scored(clock):
    slow = FunctionScorer(seconds_per_pair=1, sleep=clock.sleep)
    documents = [document(clock, number, 3) for number in range(20)]
    scores = score_parts(slow, "part", documents, deadline=Deadline.after_ms(20_000, clock))
    assert clock() <= 21
    assert scores.reached == scores.attempted == 10  # half of the time each


def test_without_a_deadline_all_passages_are_scored_in_one_call(clock):
    calls = []

    class Once(FunctionScorer):
        def score(self, query, documents, tuples, *, deadline=NEVER):
            calls.append(list(documents))
            return super().score(query, documents, tuples, deadline=deadline)

    parts = [document(clock, number, count) for number, count in enumerate([300, 2])]
    scores = score_parts(Once(), "part", parts, deadline=NEVER)
    (texts,) = calls
    assert texts[:4] == ["document 0 part 0", "document 1 part 0", "document 0 part 1", "document 1 part 1"]
    assert (scores.asked, scores.attempted, scores.unread) == (302, 302, 0)


@pytest.fixture
def vectors(tmp_path):
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(), "standard", backend=ArithmeticEncoder())
    yield scorer.vectors
    scorer.close()


def long_text(clock: ManualClock, number: int) -> LongText:
    return LongText(bytes([number]) * 16, lambda: list(document(clock, number, 5)))


def test_documents_are_cut_lazily_before_encoding(clock, vectors: DocumentVectors):
    texts = [long_text(clock, number) for number in range(20)]
    records = vectors.find(texts, Deadline.after_ms(40_000, clock))
    assert clock() <= 45
    scored = [bool(document.records) for document in records.documents]
    assert scored == sorted(scored, reverse=True)
    assert 4 <= sum(scored) < 20
    assert all(document.has_open_parts for document in records.documents[sum(scored) :])


def test_texts_of_documents_are_prepared_lazily(clock, vectors: DocumentVectors):
    def texts():
        for number in range(20):
            clock.sleep(CUT_S)
            yield f"text {number}"

    records = vectors.find(texts(), Deadline.after_ms(8_000, clock))
    assert len(records.documents) == 4
    assert all(document.records for document in records.documents)
    assert len(vectors.find(texts()).documents) == 20
