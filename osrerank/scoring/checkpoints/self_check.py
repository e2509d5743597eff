"""Check that a converted reranker ranks the answering paragraph before a random one, for 50 questions of SQuAD.

Bi-encoders whose graph another program exported are checked in the same way.

The check reveals swapped labels, a vocabulary of the wrong case, and a lost head. A trained reranker scores nearly
every answering paragraph far above the random one. A model that lost its head gets a new one with small, random
weights. Because its other layers are trained, it might order the paragraphs correctly by chance, but with almost equal
scores. Therefore the margin between the scores is checked too.
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
"""The folder of the questions, the paragraphs and the judgments, which are part of SQuAD."""
QUESTIONS = 50
"""The number of questions in the self-check."""
MIN_CORRECT = 45
"""The number of questions for which the answering paragraph must come first."""
MAX_INVERTED = 10
"""A model that puts the answering paragraph first for at most this many questions has an inverted order."""
MIN_MARGIN = 1.5
"""The lowest median margin between the two paragraphs' raw logits with which a cross-encoder or duo model passes."""
MAX_UNKNOWN = 0.01
"""The highest fraction of unknown tokens ([UNK]) with which a model passes."""
SKIP_HINT = "if the model is not trained yet or does not read English, run osrerank export --no-self-check"
ENCODER_SKIP_HINT = "if the model does not read English, run osrerank export, which writes its graph without this check"


class Example(NamedTuple):
    """A question, the paragraph that answers it, and a random paragraph of another article."""

    question: str
    answer: str
    unrelated: str


class SelfCheck(NamedTuple):
    """The outcome of a self-check.

    Attributes:
        correct: number of questions, out of `QUESTIONS`, whose answering paragraph came first.
        margin: median difference of the two paragraphs' raw (uncalibrated) logits. Negative if the order is wrong.
        unknown_share: fraction of [UNK] among the tokens of all questions and paragraphs, from 0 to 1.
        head: form of the model's head.
        label: index of the output that is the score: 1 if the head has two outputs, otherwise 0.
        casing: ``cased`` if the tokenizer keeps capital letters, otherwise ``lower case``.
        segment_rows: number of rows in the model's segment embedding table.
        sha256: SHA-256 of the checkpoint's files. "" if the checkpoint was not converted.
        cause: likely cause of the failure. "" if the check passed.
    """

    correct: int
    margin: float
    unknown_share: float
    head: str
    label: int
    casing: str
    segment_rows: int
    sha256: str
    cause: str

    def __str__(self) -> str:
        source = f", SHA-256 {self.sha256}" if self.sha256 else ""
        return (
            f"self-check: {self.correct} of {QUESTIONS} answering paragraphs before random ones, "
            f"by {self.margin:.2f} logits, {self.unknown_share:.2%} [UNK]; "
            f"head {self.head}, label {self.label}, {self.casing}, {self.segment_rows} segment rows{source}"
        )


def run_self_check(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Score the examples with a model, and return the outcome."""
    tokenizer = Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    margins = np.array([_margin(scorer, card, example) for example in examples()])
    correct = int(np.count_nonzero(margins > 0))
    margin = float(np.median(margins))
    unknown_share = _unknown_share(tokenizer)
    lowers_case = tokenizer.normalizer is not None and tokenizer.normalizer.normalize_str("A") == "a"
    has_wrong_case = lowers_case and is_cased(tokenizer.get_vocab())
    return SelfCheck(
        correct=correct,
        margin=margin,
        unknown_share=unknown_share,
        head=card.head,
        label=1 if card.head in {"logits2", "next-sentence"} else 0,
        casing="lower case" if lowers_case else "cased",
        segment_rows=int(read_config(directory).get("type_vocab_size", 0)),
        sha256=sha256,
        cause=_find_cause(correct, margin, unknown_share, card, has_wrong_case=has_wrong_case),
    )


def require_self_check(scorer: Scorer | Encoder, directory: Path, card: ModelCard, *, sha256: str = "") -> SelfCheck:
    """Return the outcome of `run_self_check` if the model passes it.

    Raises:
        ModelLoadError: the model fails the check. The message states the likely cause.
    """
    check = run_self_check(scorer, directory, card, sha256=sha256)
    if check.cause:
        hint = ENCODER_SKIP_HINT if card.is_encoder else SKIP_HINT
        reason = f"{card.name} does not rank like a trained model: {check.cause} ({check}); {hint}"
        raise ModelLoadError(reason, model=card.name, path=str(directory))
    return check


@cache
def examples() -> tuple[Example, ...]:
    """Return the questions and their paragraphs, which are the same in every run."""
    with gzip.open(SAMPLE / "corpus.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = {entry["id"]: entry["text"] for entry in map(json.loads, lines)}
    answer_ids = {}
    for line in (SAMPLE / "qrels.txt").read_text("utf-8").splitlines():
        query_id, _, doc_id, _ = line.split()
        answer_ids[query_id] = doc_id
    rng = random.Random(1)  # noqa: S311 - a choice of examples
    doc_ids = sorted(texts)
    sample = []
    for line in (SAMPLE / "queries.tsv").read_text("utf-8").splitlines()[:QUESTIONS]:
        query_id, question = line.split("\t")
        answer_id = answer_ids[query_id]
        unrelated_ids = [doc_id for doc_id in doc_ids if _article(doc_id) != _article(answer_id)]
        sample.append(Example(question, texts[answer_id], texts[rng.choice(unrelated_ids)]))
    return tuple(sample)


def _article(doc_id: str) -> str:
    """Return the article of a paragraph, the part of its id before the last slash."""
    return doc_id.rpartition("/")[0]


def _margin(scorer: Scorer | Encoder, card: ModelCard, example: Example) -> float:
    """Return the raw (uncalibrated) logit of the answering paragraph minus that of the random one."""
    texts = [example.answer, example.unrelated]
    if is_encoder(scorer):
        query = scorer.encode([example.question], "query")
        documents = scorer.encode(texts, "document")
        answer, unrelated = scorer.similarity(query.rows[0], documents.rows)
    elif card.kind == "duo":
        answer, unrelated = scorer.score(example.question, texts, [(0, 1), (1, 0)]).values
    else:
        answer, unrelated = scorer.score(example.question, texts, [(0,), (1,)]).values
    return float(answer - unrelated) / card.calibration.scale


def _unknown_share(tokenizer: Tokenizer) -> float:
    unknown_token = getattr(tokenizer.model, "unk_token", None)
    texts = [text for example in examples() for text in example]
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    return float(np.mean([token == unknown_token for encoding in encodings for token in encoding.tokens]))


def _find_cause(correct: int, margin: float, unknown_share: float, card: ModelCard, *, has_wrong_case: bool) -> str:
    """Return the likely cause of a failed check. Returns "" if the check passed.

    `SelfCheck` explains the numbers. ``has_wrong_case`` says whether the tokenizer lower-cases texts although its
    vocabulary has words with capitals.
    """
    if has_wrong_case:
        return "texts are lower-cased, but the vocabulary has words with capitals: set do_lower_case to false"
    if unknown_share > MAX_UNKNOWN:
        return (
            f"{unknown_share:.1%} of the tokens are unknown: the vocabulary belongs to another model, or it is "
            "lower-cased and texts are not lower-cased (do_lower_case)"
        )
    if card.is_encoder:
        wrong_weights = "its graph, its pooling or the vocabulary belongs to another model"
    else:
        wrong_weights = "its head was lost or is not trained, or the vocabulary belongs to another model"
        if abs(margin) < MIN_MARGIN:
            return f"it scores answering and random paragraphs almost equally: {wrong_weights}"
        if correct <= MAX_INVERTED:
            cause = "the labels are swapped"
            if card.head == "next-sentence":
                cause = "in this next-sentence head, output 0 means relevant, not output 1"
            return f"the order is inverted: {cause}"
    if correct < MIN_CORRECT:
        return f"it puts too few answering paragraphs first: {wrong_weights}"
    return ""
