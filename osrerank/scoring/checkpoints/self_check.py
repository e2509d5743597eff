"""Whether a converted reranker ranks at all: 50 questions of SQuAD, each with its paragraph and a random one.

So are bi-encoders checked whose graph another program exported.

Equal outputs on random weights say nothing about labels in the wrong order, a vocabulary that is cased, or a head that
was lost. A trained reranker puts nearly every answering paragraph first, and far ahead, so that each of these shows.
The distance counts because the layers below a lost head were trained: with a new head, which is random and small,
relevant and other texts still lie apart, by chance in the right order.
"""

import gzip
import json
import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from osrerank.errors import ModelLoadError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.checkpoints.vocabulary import is_cased
from osrerank.scoring.model_files import TOKENIZER_FILE, read_config
from osrerank.types import Encoder, Scorer, is_encoder

SAMPLE = Path(__file__).parents[2] / "data" / "squad"
PAIRS, ENOUGH, INVERTED = 50, 45, 10
LEAST_MARGIN = 1.5
"""In logits, as the head gives them."""
MOST_UNKNOWN = 0.01
SKIP = "if it is not trained yet or reads no English, give osrerank export --no-self-check"
SKIP_ENCODER = "if it reads no English, osrerank export makes a graph of it, without this check"


class CheckedQuestion(NamedTuple):
    """A question with the paragraph that answers it and a random one."""

    question: str
    answering: str
    other: str


class SelfCheck(NamedTuple):
    """What a check found.

    Attributes:
        right: answering paragraphs that were put before the random ones, of `PAIRS`.
        margin: median distance of the two paragraphs' logits, as the head gives them; negative in the wrong order.
        unknown: share of [UNK] among the pieces of all texts.
        head, label: the head, and which of its outputs is the score.
        casing: ``cased`` or ``lower case``: how texts are read.
        segment_rows: how many segments the model's table has.
        sha256: of the checkpoint's files, if it was converted.
        cause: why the check failed, most likely; empty where it passed.
    """

    right: int
    margin: float
    unknown: float
    head: str
    label: int
    casing: str
    segment_rows: int
    sha256: str
    cause: str

    def __str__(self) -> str:
        source = f", SHA-256 {self.sha256}" if self.sha256 else ""
        return (
            f"self-check: {self.right} of {PAIRS} answering paragraphs before random ones, "
            f"by {self.margin:.2f} logits, {self.unknown:.2%} [UNK]; "
            f"head {self.head}, label {self.label}, {self.casing}, {self.segment_rows} segment rows{source}"
        )


def self_check(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Return what a model does with the examples.

    Args:
        scorer: the model.
        directory: the model's.
        card: the model's.
        sha256: of the checkpoint's files.
    """
    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    config = read_config(directory)
    margins = np.array([_margin(scorer, card, example) for example in examples()])
    right, margin = int(np.count_nonzero(margins > 0)), float(np.median(margins))
    unknown = _unknown(tokenizer)
    lowers = _lowers(tokenizer)
    return SelfCheck(
        right,
        margin,
        unknown,
        card.head,
        1 if card.head in {"logits2", "next-sentence"} else 0,
        "lower case" if lowers else "cased",
        int(config.get("type_vocab_size", 0)),
        sha256,
        _cause(right, margin, unknown, card, is_mixed=lowers and is_cased(tokenizer.get_vocab())),
    )


def checked(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Return a check that passed.

    Raises:
        ModelLoadError: it did not; the message has the likely cause.
    """
    found = self_check(scorer, directory, card, sha256=sha256)
    if found.cause:
        skip = SKIP_ENCODER if card.is_encoder else SKIP
        reason = f"{card.name} does not rank as a trained model does: {found.cause} ({found}); {skip}"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return found


@cache
def examples() -> tuple[CheckedQuestion, ...]:
    """Return the examples, always the same."""
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {entry["id"]: entry["text"] for entry in map(json.loads, lines)}
    answers = dict(line.split()[::2] for line in (SAMPLE / "qrels.txt").read_text("utf-8").splitlines())
    questions = (line.split("\t") for line in (SAMPLE / "queries.tsv").read_text("utf-8").splitlines()[:PAIRS])
    rng, ids = random.Random(1), sorted(texts)  # noqa: S311 - a choice of examples
    found = []
    for query_id, question in questions:
        answer = answers[query_id]
        article = answer.rpartition("/")[0]
        other = rng.choice([one for one in ids if one.rpartition("/")[0] != article])
        found.append(CheckedQuestion(question, texts[answer], texts[other]))
    return tuple(found)


def _margin(scorer: Scorer | Encoder, card: ModelCard, example: CheckedQuestion) -> float:
    """Return how far the answering paragraph is ahead, in logits as the head gives them."""
    texts = [example.answering, example.other]
    if is_encoder(scorer):
        query, documents = scorer.encode([example.question], "query"), scorer.encode(texts, "document")
        first, second = scorer.similarity(query.rows[0], documents.rows)
    elif card.kind == "duo":
        first, second = scorer.score(example.question, texts, [(0, 1), (1, 0)]).values
    else:
        first, second = scorer.score(example.question, texts, [(0,), (1,)]).values
    return float(first - second) / card.calibration.scale


def _unknown(tokenizer: Tokenizer) -> float:
    """Return the share of pieces that stand for what the vocabulary lacks."""
    unknown = getattr(tokenizer.model, "unk_token", None)
    texts = [text for example in examples() for text in example]
    pieces = [
        token for encoding in tokenizer.encode_batch(texts, add_special_tokens=False) for token in encoding.tokens
    ]
    return float(np.mean([token == unknown for token in pieces]))


def _lowers(tokenizer: Tokenizer) -> bool:
    return tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A") == "a"


def _cause(right: int, margin: float, unknown: float, card: ModelCard, *, is_mixed: bool) -> str:
    """Return why a check fails; empty where it does not."""
    swapped = "the labels are swapped"
    if card.head == "next-sentence":
        swapped = "in this next-sentence head, output 0 means relevant, not output 1"
    part = "its graph or pooling is another model's" if card.is_encoder else "its head was lost or is not trained"
    lost = f"{part}, or the vocabulary is another model's"
    causes = {
        "texts are lower-cased and the vocabulary has words with capitals: do_lower_case must be false": is_mixed,
        f"{unknown:.1%} of the pieces are unknown: the vocabulary is another model's, or it is of lower case and texts "
        "are not lower-cased (do_lower_case)": unknown > MOST_UNKNOWN,
        f"it hardly tells paragraphs apart: {lost}": abs(margin) < LEAST_MARGIN and not card.is_encoder,
        f"the order is upside down: {swapped}": right <= INVERTED and not card.is_encoder,
        f"it puts too few first: {lost}": right < ENOUGH,
    }
    return next((cause for cause, applies in causes.items() if applies), "")
