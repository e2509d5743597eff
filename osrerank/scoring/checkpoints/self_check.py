"""Check that a converted reranker ranks: 50 questions of SQuAD, each with its paragraph and a random one.

Bi-encoders whose graph another program exported are checked in the same way.

A comparison of outputs on random weights cannot detect swapped labels, a vocabulary of the wrong case or a lost head.
This check does: a trained reranker puts nearly every answering paragraph first, and far ahead of the random one.
The margin counts too, because a lost head leaves the trained layers below it. With a new head, which is random and
small, the paragraphs may still be in the right order by chance, but they are close together.
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
QUESTIONS = 50
MIN_RIGHT = 45
"""The minimum number of questions whose answering paragraph must come first."""
MAX_INVERTED = 10
"""If at most this many answering paragraphs come first, the order is inverted."""
MIN_MARGIN = 1.5
"""The minimum median margin, in uncalibrated logits."""
MAX_UNKNOWN = 0.01
"""The maximum share of unknown tokens."""
SKIP = "if the model is not trained yet or does not read English, run osrerank export --no-self-check"
SKIP_ENCODER = "if the model does not read English, run osrerank export, which writes its graph without this check"


class CheckedQuestion(NamedTuple):
    """A question with the paragraph that answers it and a random one."""

    question: str
    answering: str
    other: str


class SelfCheck(NamedTuple):
    """The outcome of a self-check.

    Attributes:
        right: number of questions, of `QUESTIONS`, whose answering paragraph came before the random one.
        margin: median difference of the two paragraphs' uncalibrated logits; negative if the order is wrong.
        unknown: share of [UNK] among the tokens of all texts.
        head: form of the model's head.
        label: index of the output that is the score.
        casing: ``cased`` or ``lower case``: how the tokenizer treats capital letters.
        segment_rows: number of rows in the model's segment table.
        sha256: SHA-256 of the checkpoint's files, if it was converted.
        cause: likely cause of the failure; empty if the check passed.
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
            f"self-check: {self.right} of {QUESTIONS} answering paragraphs before random ones, "
            f"by {self.margin:.2f} logits, {self.unknown:.2%} [UNK]; "
            f"head {self.head}, label {self.label}, {self.casing}, {self.segment_rows} segment rows{source}"
        )


def run_self_check(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Score the examples, and return how well the model ranks them.

    Args:
        scorer: the model.
        directory: the model's directory.
        card: the model's card.
        sha256: SHA-256 of the checkpoint's files.
    """
    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    config = read_config(directory)
    margins = np.array([_margin(scorer, card, example) for example in examples()])
    right, margin = int(np.count_nonzero(margins > 0)), float(np.median(margins))
    unknown = _unknown_share(tokenizer)
    lowers_case = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A") == "a"
    return SelfCheck(
        right,
        margin,
        unknown,
        card.head,
        1 if card.head in {"logits2", "next-sentence"} else 0,
        "lower case" if lowers_case else "cased",
        int(config.get("type_vocab_size", 0)),
        sha256,
        _cause(right, margin, unknown, card, is_mixed=lowers_case and is_cased(tokenizer.get_vocab())),
    )


def require_self_check(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Run the self-check, and return its outcome if the model passes; arguments as in `run_self_check`.

    Raises:
        ModelLoadError: the model fails the check; the message has the likely cause.
    """
    check = run_self_check(scorer, directory, card, sha256=sha256)
    if check.cause:
        skip = SKIP_ENCODER if card.is_encoder else SKIP
        reason = f"{card.name} does not rank as a trained model does: {check.cause} ({check}); {skip}"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return check


@cache
def examples() -> tuple[CheckedQuestion, ...]:
    """Return the questions and their paragraphs, always the same."""
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {entry["id"]: entry["text"] for entry in map(json.loads, lines)}
    answers = dict(line.split()[::2] for line in (SAMPLE / "qrels.txt").read_text("utf-8").splitlines())
    questions = (line.split("\t") for line in (SAMPLE / "queries.tsv").read_text("utf-8").splitlines()[:QUESTIONS])
    rng, doc_ids = random.Random(1), sorted(texts)  # noqa: S311 - a choice of examples
    checked_questions = []
    for query_id, question in questions:
        answer_id = answers[query_id]
        article = answer_id.rpartition("/")[0]
        other_id = rng.choice([doc_id for doc_id in doc_ids if doc_id.rpartition("/")[0] != article])
        checked_questions.append(CheckedQuestion(question, texts[answer_id], texts[other_id]))
    return tuple(checked_questions)


def _margin(scorer: Scorer | Encoder, card: ModelCard, example: CheckedQuestion) -> float:
    """Return the uncalibrated logit of the answering paragraph minus that of the random one."""
    texts = [example.answering, example.other]
    if is_encoder(scorer):
        query, documents = scorer.encode([example.question], "query"), scorer.encode(texts, "document")
        first, second = scorer.similarity(query.rows[0], documents.rows)
    elif card.kind == "duo":
        first, second = scorer.score(example.question, texts, [(0, 1), (1, 0)]).values
    else:
        first, second = scorer.score(example.question, texts, [(0,), (1,)]).values
    return float(first - second) / card.calibration.scale


def _unknown_share(tokenizer: Tokenizer) -> float:
    """Return the share of tokens in the examples that are the unknown token."""
    unknown = getattr(tokenizer.model, "unk_token", None)
    texts = [text for example in examples() for text in example]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return float(np.mean([token == unknown for encoding in encodings for token in encoding.tokens]))


def _cause(right: int, margin: float, unknown: float, card: ModelCard, *, is_mixed: bool) -> str:
    """Return the likely cause of a failed check; empty if the check passed.

    Args:
        right: as in `SelfCheck`.
        margin: as in `SelfCheck`.
        unknown: as in `SelfCheck`.
        card: the model's card.
        is_mixed: whether texts are lower-cased, but the vocabulary has words with capitals.
    """
    swapped = "the labels are swapped"
    if card.head == "next-sentence":
        swapped = "in this next-sentence head, output 0 means relevant, not output 1"
    wrong_weights = "its head was lost or is not trained"
    if card.is_encoder:
        wrong_weights = "its graph or its pooling belongs to another model"
    wrong_weights += ", or the vocabulary belongs to another model"
    causes = {
        "texts are lower-cased, but the vocabulary has words with capitals: set do_lower_case to false": is_mixed,
        f"{unknown:.1%} of the tokens are unknown: the vocabulary belongs to another model, or it is lower-cased and "
        "texts are not lower-cased (do_lower_case)": unknown > MAX_UNKNOWN,
        f"it scores answering and random paragraphs almost equally: {wrong_weights}": abs(margin) < MIN_MARGIN
        and not card.is_encoder,
        f"the order is upside down: {swapped}": right <= MAX_INVERTED and not card.is_encoder,
        f"it puts too few answering paragraphs first: {wrong_weights}": right < MIN_RIGHT,
    }
    return next((cause for cause, applies in causes.items() if applies), "")
