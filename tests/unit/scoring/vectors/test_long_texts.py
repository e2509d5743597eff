"""A document that is read by its passages has one record, and is not cut again while that is known."""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from osrerank.options.passages import Passages
from osrerank.scoring.cache.local import LocalStore, NoStore
from osrerank.scoring.cache.scorer import CachedScorer
from osrerank.scoring.passages import score_parts
from osrerank.scoring.vectors.long_record import LongRecord
from osrerank.scoring.vectors.record import Bits, Record, sealed
from osrerank.scoring.vectors.request import FetchedVectors
from osrerank.scoring.vectors.scorer import BiEncoderScorer
from osrerank.scoring.vectors.store import MemoryStore
from osrerank.stages.passages import PassageStage
from osrerank.testing import ArithmeticEncoder, ManualClock
from osrerank.types import NEVER, Candidate, Deadline, LongText, Section, Span
from tests.bi_encoders import carded
from tests.unit.scoring.vectors.test_scorer import WORDS, opened

QUERY = "what causes low blood pressure"
RNG = random.Random(5)
OPTIONS = Passages(words=20, stride=20, limit=4, least_words=25)
LENGTHS = (90, 5, 40, 26, 0, 61)
KEY = b"0123456789abcdef"


def document(number: int, words: int) -> Candidate:
    text = " ".join(random.Random(number).choices(WORDS, k=words))
    return Candidate(f"d{number}", text, 0.0, number + 1, sections=(Section("text", text),))


CANDIDATES = [document(number, words) for number, words in enumerate(LENGTHS)]


@pytest.fixture
def backend() -> ArithmeticEncoder:
    return ArithmeticEncoder()


@pytest.fixture
def scorer(tmp_path: Path, backend: ArithmeticEncoder) -> Iterator[BiEncoderScorer]:
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(10_000_000), "standard", backend=backend)
    yield scorer
    scorer.close()


def stage_of(scorer: BiEncoderScorer, options: Passages = OPTIONS) -> PassageStage:
    return PassageStage(scorer, options)


def texts_of(scorer: BiEncoderScorer, candidates: Sequence[Candidate] = CANDIDATES) -> list[str | LongText]:
    return [stage_of(scorer).text_of(candidate) for candidate in candidates]


def uncuttable(text: str | LongText) -> str | LongText:
    def cut() -> list[tuple[str, Span | None]]:
        raise AssertionError("a known document is cut")

    return LongText(text.content, cut) if isinstance(text, LongText) else text


def test_they_have_the_scores_of_their_passages(scorer: BiEncoderScorer) -> None:
    parts = [stage_of(scorer).passages_of(candidate) for candidate in CANDIDATES]
    assert [len(some) for some in parts] == [4, 1, 2, 2, 1, 4]
    expected = score_parts(scorer, QUERY, parts, deadline=NEVER)
    scorer.records.flush()
    known = len(scorer.known(scorer.keys_of([text for some in parts for text, _ in some])))
    cold = scorer.score_passages(QUERY, texts_of(scorer))
    scorer.records.flush()
    warm = scorer.score_passages(QUERY, [uncuttable(text) for text in texts_of(scorer)])
    for found in (cold, warm):
        assert [list(some) for some in found.places] == [[span for _, span in some] for some in parts]
        for some, other in zip(found.logits, expected.logits, strict=True):
            np.testing.assert_array_equal(some, other)
        assert (found.inferences, found.failures) == (14, {})
    assert (cold.encoded, cold.known) == (12, 2)  # the short ones have the records of their texts
    assert (warm.encoded, warm.known) == (0, 14)
    assert scorer.store is not None
    assert scorer.store.size().records == known + 4


def test_how_it_is_cut_is_part_of_the_key(scorer: BiEncoderScorer) -> None:
    def key(candidate: Candidate, options: Passages = OPTIONS) -> bytes:
        return scorer.keys_of([stage_of(scorer, options).text_of(candidate)])[0]

    whole = CANDIDATES[0]
    text = whole.text or ""
    others = [
        key(whole, Passages(words=20, stride=10, limit=4, least_words=25)),
        key(whole, Passages(words=20, stride=20, limit=3, least_words=25)),
        key(whole, Passages("firstp", words=20, stride=20, limit=4, least_words=25)),
        key(whole, Passages(words=20, stride=20, limit=4, least_words=25, title_fields=("text",))),
        key(Candidate("d0", f"{text} wing", 0.0, 1)),
        key(Candidate("d0", text, 0.0, 1, sections=(Section("body", text),))),
        key(Candidate("d0", text, 0.0, 1, sections=(Section("text", text, 0),))),
    ]
    assert len({key(whole), *others}) == len(others) + 1
    assert key(whole) == key(Candidate("another id", text, 0.0, 1))
    assert key(whole) == key(whole, Passages("kmaxavgp", k=3, words=20, stride=20, limit=4, least_words=25))
    sampled = Passages(words=20, stride=20, limit=3, least_words=25, policy="sampled")
    assert key(whole, sampled) != key(Candidate("another id", text, 0.0, 1), sampled)


def test_a_deadline_cuts_off_later_passages_and_keeps_no_part_of_a_document(tmp_path: Path) -> None:
    clock = ManualClock()
    slow = ArithmeticEncoder(lambda _ids: clock.sleep(1), threads=1)
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(10_000_000), "standard", backend=slow)
    deadline = Deadline.after_ms(8_000, clock)
    found = scorer.score_passages(QUERY, texts_of(scorer), deadline=deadline)
    assert all(not np.isnan(logits[0]) for logits in found.logits)
    assert (found.asked, found.encoded, found.attempted) == (14, found.attempted, found.inferences)
    assert 6 <= found.attempted < 14
    assert found.reached == len(CANDIDATES)
    scorer.close()


def test_after_the_deadline_nothing_is_attempted(scorer: BiEncoderScorer) -> None:
    scorer.remember(texts_of(scorer))
    found = scorer.score_passages(QUERY, texts_of(scorer), deadline=Deadline.after_ms(-1))
    assert (found.attempted, found.inferences, found.scored) == (0, 0, [])


def test_a_passage_that_fails_leaves_the_others(tmp_path: Path) -> None:
    failing: list[bytes] = []
    is_mended: list[bool] = []

    def break_one(ids: np.ndarray) -> None:
        if not failing and len(ids) > 8:
            failing.append(ids.tobytes())
        if ids.tobytes() in failing and not is_mended:
            raise RuntimeError("out of memory")

    backend = ArithmeticEncoder(break_one)
    scorer = opened(carded(tmp_path / "tiny"), MemoryStore(10_000_000), "standard", backend=backend)
    found = scorer.score_passages(QUERY, texts_of(scorer))
    assert len(found.failures) == 1
    ((at, turn),) = found.failures
    assert "out of memory" in found.failures[at, turn]
    assert len(found.scored) == len(CANDIDATES)
    assert found.attempted == found.asked == 14
    scorer.records.flush()
    is_mended.append(True)
    again = scorer.score_passages(QUERY, texts_of(scorer))
    assert again.failures == {}
    assert again.encoded == len(found.places[at])  # no part of it was kept
    scorer.close()


def test_a_search_takes_along_what_was_computed(scorer: BiEncoderScorer) -> None:
    vectors = FetchedVectors({})
    cold = scorer.score_passages(QUERY, texts_of(scorer), vectors=vectors)
    assert len(vectors.new) == len(CANDIDATES)
    elsewhere = opened(scorer._directory, None, "standard", backend=ArithmeticEncoder())
    warm = elsewhere.score_passages(QUERY, texts_of(scorer), vectors=FetchedVectors(vectors.new))
    assert (warm.encoded, warm.known) == (0, 14)
    for some, other in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(some, other)
    elsewhere.close()


def test_behind_a_cache_short_ones_are_scored_once_and_long_ones_from_their_vectors(scorer: BiEncoderScorer) -> None:
    cached = CachedScorer(scorer, NoStore(), LocalStore(1_000_000))
    expected = scorer.score_passages(QUERY, texts_of(scorer))
    scorer.records.flush()
    for known in (0, 2):
        found = cached.score_passages(QUERY, texts_of(scorer))
        assert (found.cached, found.known, found.encoded) == (known, 14 - known, 0)
        assert found.places == expected.places
        for some, other in zip(found.logits, expected.logits, strict=True):
            np.testing.assert_array_equal(some, other)
    short = [text for text in texts_of(scorer) if isinstance(text, str)]
    alone = cached.score_passages(QUERY, short)
    assert (alone.cached, [len(logits) for logits in alone.logits]) == (2, [1, 1])
    assert cached.score_passages(QUERY, []).asked == 0


def test_remember_counts_passages_and_makes_each_once(scorer: BiEncoderScorer) -> None:
    assert scorer.remember(texts_of(scorer)) == (14, 14)
    assert scorer.remember([uncuttable(text) for text in texts_of(scorer)]) == (14, 0)
    seconds, stored = scorer.cost_of(texts_of(scorer))
    assert scorer.store is not None
    assert seconds > 0
    assert stored == scorer.store.size().stored


def record(bits: Bits = 8) -> LongRecord:
    numbers = np.random.default_rng(1)
    passages = [Record.of(numbers.normal(size=8).astype(np.float32), bits, cut=cut) for cut in (False, True, False)]
    return LongRecord(passages, [Span("body", 0, 9), None, Span("note", 3, 7, 2)])


@pytest.mark.parametrize("bits", [32, 8])
@pytest.mark.parametrize("secret", [b"", b"secret"])
def test_it_is_read_as_it_was_written(bits: Bits, secret: bytes) -> None:
    content = record(bits).write(KEY, secret)
    read = LongRecord.read(content, KEY, secret)
    assert read is not None
    assert read.places == record(bits).places
    assert read.write(KEY, secret) == content
    assert LongRecord.read(content, KEY[::-1], secret) is None
    assert LongRecord.read(content, KEY, b"another") is None
    assert Record.read(content, KEY, secret) is None


def test_no_damaged_one_is_read() -> None:
    content = record().write(KEY)
    for at in range(0, len(content), 3):
        flipped = bytes([*content[:at], content[at] ^ 1, *content[at + 1 :]])
        assert LongRecord.read(flipped, KEY) is None
        assert LongRecord.read(content[:at], KEY) is None


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
        record().write(KEY)[:-16] + b"x",
    ],
)
def test_without_a_secret_nothing_in_it_is_trusted(forged: bytes) -> None:
    assert LongRecord.read(sealed(forged, KEY, b""), KEY) is None
