"""The option ``sentences``: score documents by their best sentences. `osrerank.stages.sentences` implements it.

The method is Birch (Akkalyoncu Yilmaz et al., EMNLP 2019). Where its paper and its released code differ, the
descriptions of the options say which of the two they follow.
"""

from dataclasses import dataclass
from typing import Any, Literal

from osrerank.options.parse import invalid_option, is_count, is_fraction, is_nonempty_string, parse_options

PUNKT_LANGUAGES = {
    "cs": "czech", "da": "danish", "de": "german", "el": "greek", "en": "english", "es": "spanish", "et": "estonian",
    "fi": "finnish", "fr": "french", "it": "italian", "ml": "malayalam", "nl": "dutch", "no": "norwegian",
    "pl": "polish", "pt": "portuguese", "ru": "russian", "sl": "slovene", "sv": "swedish", "tr": "turkish",
}  # fmt: skip
"""The name of NLTK's Punkt model for each two-letter language code."""


@dataclass(frozen=True, slots=True)
class Sentences:
    """How documents are scored by their best sentences.

    Attributes:
        a: the weight of the first-pass score, in [0, 1]. The sentences have the weight 1 - a. ``osrerank tune`` learns
            it for a collection.
        weights: the weights of the best sentence, the second best and so on, in [0, 1]. In Birch's paper, the weight of
            the best sentence is 1.
        scores: the scores that are summed: ``"logit"``, as in Birch's released code, or ``"probability"``, as in its
            paper.
        splitter: the sentence splitter: ``"sentencex"``, or ``"punkt"`` for NLTK's Punkt, as in Birch's released code.
        chunks: the unit by which long sentences are split. ``"words"``, as in Birch's released code, splits them after
            ``max_words`` words, and the model might still truncate a part. ``"tokens"`` splits them into parts that fit
            into the model's window together with the query.
        max_words: the maximum number of words in a sentence. Longer sentences are split. The option is ignored with
            ``chunks="tokens"``.
        drop_tail: whether the last part of a split sentence is dropped if it has fewer than ``max_words`` words, as in
            Birch's released code.
        limit: the maximum number of sentences scored in a document. If None, all are scored.
        language: the language of the documents, as a two-letter code.
    """

    a: float = 0.5
    weights: tuple[float, ...] = (1.0, 0.2, 0.3)
    scores: Literal["logit", "probability"] = "logit"
    splitter: Literal["sentencex", "punkt"] = "sentencex"
    chunks: Literal["words", "tokens"] = "words"
    max_words: int = 512
    drop_tail: bool = False
    limit: int | None = None
    language: str = "en"

    def __post_init__(self) -> None:
        weights: Any = self.weights  # a settings file or a caller might pass a number or a list
        object.__setattr__(self, "weights", tuple(weights) if isinstance(weights, list | tuple) else (weights,))
        if not is_fraction(self.a):
            raise invalid_option("sentences.a", self.a, "a number in [0, 1]")
        if not (self.weights and all(is_fraction(weight) for weight in self.weights)):
            raise invalid_option("sentences.weights", self.weights, "one or more numbers in [0, 1]")
        if self.scores not in ("logit", "probability"):
            raise invalid_option("sentences.scores", self.scores, '"logit" or "probability"')
        if self.limit is not None and not is_count(self.limit):
            raise invalid_option("sentences.limit", self.limit, "a whole number of at least 1, or None")
        self._check_splitting()

    def _check_splitting(self) -> None:
        if self.splitter not in ("sentencex", "punkt"):
            raise invalid_option("sentences.splitter", self.splitter, '"sentencex" or "punkt"')
        if self.chunks not in ("words", "tokens"):
            raise invalid_option("sentences.chunks", self.chunks, '"words" or "tokens"')
        if not is_count(self.max_words):
            raise invalid_option("sentences.max_words", self.max_words, "a whole number of at least 1")
        if self.drop_tail not in (True, False):
            raise invalid_option("sentences.drop_tail", self.drop_tail, "True or False")
        if self.drop_tail and self.chunks == "tokens":
            raise invalid_option("sentences.drop_tail", self.drop_tail, 'False with chunks="tokens"')
        if not is_nonempty_string(self.language):
            raise invalid_option("sentences.language", self.language, "a two-letter code")
        if self.splitter == "punkt" and self.language not in PUNKT_LANGUAGES:
            raise invalid_option("sentences.language", self.language, f"one of {', '.join(PUNKT_LANGUAGES)}")

    @classmethod
    def of(cls, value: Any) -> "Sentences | None":
        """Parse the ``sentences`` option: True, a dict of options, or None. Raises `ConfigError` if it is invalid."""
        return parse_options(cls, value, "sentences")
