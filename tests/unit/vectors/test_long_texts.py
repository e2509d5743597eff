"""A document that is read by its passages has one record, and is not cut again while that is known."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from osrerank.errors import DeadlineExceeded
from osrerank.options.passages import Passages
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.stages.passages import PassageStage
from osrerank.stages.vectors import VectorStage
from osrerank.testing import ArithmeticEncoder, ManualClock
from osrerank.types import Candidate, Deadline, LongText, Query, Ranking, Section, Span
from osrerank.vectors.documents import DocumentRecords, DocumentVectors
from osrerank.vectors.long_record import LongRecord
from osrerank.vectors.record import Bits, VectorRecord, append_digest
from tests.bi_encoders import carded
from tests.memory_store import MemoryStore
from tests.unit.vectors.test_documents import WORDS, opened

QUERY = "what causes low blood pressure"
OPTIONS = Passages(words=20, stride=20, limit=4, least_words=25)
LENGTHS = (90, 5, 40, 26, 1, 61)
COUNTS = [4, 1, 2, 2, 1, 4]
"""Passages of each document."""
KEY = b"0123456789abcdef"


def document(number: int, words: int) -> Candidate:
    text = " ".join(random.Random(number).choices(WORDS, k=words))
    return Candidate(f"d{number}", text, 0.0, number + 1, sections=(Section("text", text),))


CANDIDATES = tuple(document(number, words) for number, words in enumerate(LENGTHS))
RANKING = Ranking(Query("q", QUERY), CANDIDATES)


@pytest.fixture
def vectors(tmp_path: Path) -> Iterator[DocumentVectors]:
    scorer = of(tmp_path, ArithmeticEncoder())
    yield scorer.vectors
    scorer.close()


def of(folder: Path, backend: ArithmeticEncoder) -> EncoderScorer:
    return opened(carded(folder / "tiny"), MemoryStore(), "standard", backend=backend)


def texts_of(vectors: DocumentVectors) -> list[str | LongText]:
    return [VectorStage(vectors, OPTIONS).prepare_text(candidate) for candidate in CANDIDATES]


def uncuttable(text: str | LongText) -> str | LongText:
    def cut() -> list[tuple[str, Span | None]]:
        raise AssertionError("a known document is cut")

    return LongText(text.content, cut) if isinstance(text, LongText) else text


def bodies(documents: list[DocumentRecords]) -> list[list[bytes]]:
    """Return the records of documents' passages, in their order."""
    return [[document.records[turn].body() for turn in sorted(document.records)] for document in documents]


def test_a_long_document_has_the_score_of_its_best_passages(vectors: DocumentVectors) -> None:
    by_passages = PassageStage(EncoderScorer(vectors), OPTIONS, name="vectors").rerank(RANKING)
    vectors.records.flush()
    assert vectors.store is not None
    known_records = vectors.store.size().records
    for _ in range(2):
        ranked = VectorStage(vectors, OPTIONS).rerank(RANKING)
        assert [candidate.trace for candidate in ranked.candidates] == [
            candidate.trace for candidate in by_passages.candidates
        ]
        vectors.records.flush()
    assert vectors.store.size().records == known_records + 4  # the short ones have the records of their texts


def test_a_long_document_with_a_record_is_not_cut_again(vectors: DocumentVectors) -> None:
    cold = vectors.find(texts_of(vectors))
    vectors.records.flush()
    warm = vectors.find([uncuttable(text) for text in texts_of(vectors)])
    assert (cold.n_encoded, cold.n_stored, warm.n_encoded, warm.n_stored) == (14, 0, 0, 14)
    assert [len(document.records) for document in warm.documents] == COUNTS
    assert bodies(warm.documents) == bodies(cold.documents)
    assert [list(document.spans) for document in warm.documents] == [
        list(document.spans) for document in cold.documents
    ]


def test_the_record_key_of_a_long_document_covers_the_passage_options(vectors: DocumentVectors) -> None:
    def key(candidate: Candidate, options: Passages = OPTIONS) -> bytes:
        return vectors.records.compute_keys([VectorStage(vectors, options).prepare_text(candidate)])[0]

    whole = CANDIDATES[0]
    text = whole.text or ""
    changes = ({"stride": 10}, {"limit": 3}, {"aggregation": "firstp"}, {"title_fields": ("text",)})
    others = [
        *(key(whole, replace(OPTIONS, **change)) for change in changes),
        key(Candidate("d0", f"{text} wing", 0.0, 1)),
        key(Candidate("d0", text, 0.0, 1, sections=(Section("body", text),))),
        key(Candidate("d0", text, 0.0, 1, sections=(Section("text", text, 0),))),
    ]
    assert len({key(whole), *others}) == len(others) + 1
    assert key(whole) == key(Candidate("another id", text, 0.0, 1))
    assert key(whole) == key(whole, replace(OPTIONS, aggregation="kmaxavgp", k=3))
    sampled = replace(OPTIONS, limit=3, policy="sampled")
    assert key(whole, sampled) != key(Candidate("another id", text, 0.0, 1), sampled)


def test_a_deadline_leaves_out_later_passages_and_stores_no_partial_record(tmp_path: Path) -> None:
    clock = ManualClock()
    scorer = of(tmp_path, ArithmeticEncoder(lambda _ids: clock.sleep(1), threads=1))
    stage = VectorStage(scorer.vectors, OPTIONS)
    ranked = stage.rerank(RANKING, deadline=Deadline.after_ms(8_000, clock))
    (report,) = ranked.reports
    assert 6 <= report.encoded == report.inferences < 14
    assert report.reason == f"the deadline passed after {report.encoded} of 14 passages"
    assert all(candidate.trace for candidate in ranked.candidates)  # each has a passage with a score
    assert ranked.vectors is not None
    assert 2 <= len(ranked.vectors.new_records) < len(CANDIDATES)
    with pytest.raises(DeadlineExceeded):
        stage.rerank(RANKING, deadline=Deadline.after_ms(-1))
    scorer.close()


def test_a_passage_that_cannot_be_encoded_leaves_the_other_passages(tmp_path: Path) -> None:
    failing: list[bytes] = []

    def break_one(ids: np.ndarray) -> None:
        if not failing and len(ids) > 8:
            failing.append(ids.tobytes())
        if ids.tobytes() in failing:
            raise RuntimeError("out of memory")

    scorer = of(tmp_path, ArithmeticEncoder(break_one))
    ranked = VectorStage(scorer.vectors, OPTIONS).rerank(RANKING)
    assert ranked.reports[0].reason == "1 of 14 passages could not be scored"
    assert all(candidate.trace for candidate in ranked.candidates)
    stored = scorer.vectors.find(texts_of(scorer.vectors))
    ((number, failures),) = [(n, text.failures) for n, text in enumerate(stored.documents) if text.failures]
    assert ["out of memory" in value for value in failures.values()] == [True]
    scorer.vectors.records.flush()
    failing[:] = [b"no text any more"]
    again = scorer.vectors.find(texts_of(scorer.vectors))
    assert not any(document.failures for document in again.documents)
    assert again.n_encoded == COUNTS[number]  # no part of it was kept
    scorer.close()


def test_a_search_keeps_computed_passage_vectors(vectors: DocumentVectors, tmp_path: Path) -> None:
    cold = vectors.find(texts_of(vectors))
    assert len(cold.new_records) == len(CANDIDATES)
    elsewhere = of(tmp_path / "elsewhere", ArithmeticEncoder()).vectors
    texts, received = texts_of(vectors), elsewhere.parse_and_store(vectors.records.to_contents(cold.new_records))
    warm = elsewhere.encode_missing(texts, elsewhere.records.compute_keys(texts), received)
    assert (warm.n_encoded, warm.n_stored) == (0, 14)
    assert bodies(warm.documents) == bodies(cold.documents)
    elsewhere.close()


def test_remembering_documents_counts_and_encodes_each_passage_once(vectors: DocumentVectors) -> None:
    assert vectors.build(texts_of(vectors)) == (14, 14)
    assert vectors.build([uncuttable(text) for text in texts_of(vectors)]) == (14, 0)
    seconds, stored = vectors.measure_cost(texts_of(vectors))
    assert vectors.store is not None
    assert seconds > 0
    assert stored == vectors.store.size().stored_bytes


def record(bits: Bits = 8) -> LongRecord:
    numbers = np.random.default_rng(1)
    passages = [
        VectorRecord.from_vector(numbers.normal(size=8).astype(np.float32), bits, is_truncated=cut)
        for cut in (False, True, False)
    ]
    return LongRecord(passages, [Span("body", 0, 9), None, Span("note", 3, 7, 2)])


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("secret", [b"", b"secret"])
def test_a_record_of_passage_vectors_round_trips(bits: Bits, secret: bytes) -> None:
    content = record(bits).to_bytes(KEY, secret)
    decoded = LongRecord.from_bytes(content, KEY, secret)
    assert decoded is not None
    assert decoded.spans == record(bits).spans
    assert decoded.to_bytes(KEY, secret) == content
    assert LongRecord.from_bytes(content, KEY[::-1], secret) is None
    assert LongRecord.from_bytes(content, KEY, b"another") is None
    assert VectorRecord.from_bytes(content, KEY, secret) is None


def test_a_damaged_record_of_passage_vectors_is_a_miss() -> None:
    content = record().to_bytes(KEY)
    for offset in range(0, len(content), 3):
        flipped = bytes([*content[:offset], content[offset] ^ 1, *content[offset + 1 :]])
        assert LongRecord.from_bytes(flipped, KEY) is None
        assert LongRecord.from_bytes(content[:offset], KEY) is None


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"ORL1",
        b"ORL1" + bytes(8),
        b"ORL1" + bytes([1, 0, 0, 0]) + bytes(4) + bytes(16),
        b"ORL1" + b"\xff" * 8,
        b"ORL1" + bytes([1, 0, 0, 0, 4, 0, 0, 0]) + b"[[[[" + bytes(16),
        b"ORL1" + bytes([1, 0, 0, 0]) + (40_000).to_bytes(4, "little") + b"[" * 40_000 + bytes(16),
        b"ORL1" + bytes([1, 0, 0, 0, 2, 0, 0, 0]) + b"[]" + bytes(16),
        record().to_bytes(KEY)[:-16] + b"x",
    ],
)
def test_a_forged_record_of_passage_vectors_is_a_miss(forged: bytes) -> None:
    assert LongRecord.from_bytes(append_digest(forged, KEY, b""), KEY) is None
