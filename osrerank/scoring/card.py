"""The model card: how a model reads texts, and what its scores mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from osrerank.scoring.modular.head import Head as Steps
from osrerank.scoring.modular.head import HeadStep, Mode
from osrerank.scoring.modular.token_vectors import TokenVectors
from osrerank.scoring.modular.tokenizer_settings import TruncationSide
from osrerank.types import Advice

CARD_VERSION = 2
CHOICES = {
    "kind": ("bi-encoder", "late-interaction", "cross-encoder", "duo"),
    "head": ("logit1", "logits2", "next-sentence", "cosine", "dot"),
    "pooling": get_args(Mode),
    "length_rule": ("paper", "released"),
    "truncation_side": ("right", "left"),
    "normalization": ("tokenizer", "sentencepiece"),
}

Kind = Literal["bi-encoder", "late-interaction", "cross-encoder", "duo"]
ENCODERS: tuple[Kind, ...] = ("bi-encoder", "late-interaction")
"""Kinds of models that read each text alone."""
POINTWISE: tuple[Kind, ...] = (*ENCODERS, "cross-encoder")
"""Kinds of models that score one document at a time."""
DUO: tuple[Kind, ...] = ("duo",)
Head = Literal["logit1", "logits2", "next-sentence", "cosine", "dot"]
SIMILARITIES = ("cosine", "dot")
LengthRule = Literal["paper", "released"]
Pooling = Mode


@dataclass(frozen=True, slots=True)
class Calibration:
    """The affine map from a model's raw score to a logit: ``scale * raw + offset``."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(
                f"the calibration's scale is {self.scale}; it must be above 0, or the order would be reversed"
            )


def is_inside(name: str) -> bool:
    """Return whether a path that is relative to a folder stays inside the folder."""
    path = PureWindowsPath(name)  # parses POSIX paths, too
    return not path.anchor and ".." not in path.parts


def logistic(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the probabilities ``(n,)`` of logits ``(n,)``, by the logistic function; large logits do not overflow."""
    exponent = -np.clip(logits.astype(np.float64), -700, 700)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(exponent))
    return probabilities


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model reads texts, and what its output means.

    Attributes:
        name: the model's name, for reports.
        kind: ``bi-encoder`` encodes ``[CLS] q [SEP]`` and ``[CLS] d [SEP]`` separately and compares their vectors;
            ``late-interaction`` likewise, with a vector of each token; both are encoders. ``cross-encoder`` reads
            ``[CLS] q [SEP] d [SEP]``; ``duo`` reads ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``.
        head: what the model computes. ``logit1``: one logit; ``logits2``: two logits, of which index 1 means relevant;
            ``next-sentence``: BERT's two next-sentence logits, of which index 1 is the score, without softmax, as in
            Birch; ``cosine``: the cosine of an encoder's two vectors; ``dot``: their dot product.
        max_tokens: maximum number of tokens in a sequence (for an encoder, in a document), with special tokens.
        max_query_tokens: maximum number of tokens in the query, with [CLS] and [SEP].
        length_rule: ``paper``: a cross-encoder uses all ``max_tokens``. A duo model reserves ``max_query_tokens`` for
            the query, and each document gets half of the remaining tokens. ``released`` follows the published code: a
            cross-encoder leaves one token unused, and a duo model reserves only the query's actual tokens.
        segment_rows: number of segment embeddings: 2 for a cross-encoder, 3 for a duo model, 1 if the model has one
            segment or the tokenizer sets no token types, 0 for a model without segments.
        truncation_side: ``right`` cuts the end of a long text, ``left`` its beginning.
        normalization: ``tokenizer``: `tokenizers` normalises texts as the tokenizer's file says; ``sentencepiece``:
            `osrerank.scoring.charsmap` normalises them by the character map in that file.
        calibration: the map from a raw score to a logit.
        first_pass_weight: the logits that the best first-pass score adds in a linear blend. 0 turns the blend off.
        onnx: precision (``int8``, ``fp32``) -> the graph's file, relative to the directory.
        pooling: bi-encoder only. ``cls``: a text's vector is the hidden state of [CLS]; ``mean``: the mean of all
            hidden states; ``max``: their largest values; ``weightedmean``: a mean in which the n-th token counts n
            times; ``lasttoken``: the state of the last token, for example [SEP].
        modules: encoder only; the steps after the pooling, in order.
        dimensions: encoder only; the number of dimensions to which vectors are truncated; 0 for the hidden size.
        provenance: base model, training data, recipe, licence, measures.
        languages: ISO 639 codes of the languages that the model reads; empty if they are not known.
        query_prefix: the prefix of every query; ``max_query_tokens`` counts it only for an encoder.
        document_prefix: encoder only; the prefix of every document.
        weights: encoder only; digest of the weights that a graph was exported from, so that vectors of the graph and of
            the weights are interchangeable; empty for the digest of the model's own files.
        vectors_weight: cross-encoder only; weight of the vectors' logit in ``vectors-mono``, relative to the model's.
        query_model: bi-encoder only; folder of another model, which encodes queries; empty to use this model.
        tokens: late interaction only; marker tokens, query expansion, and which tokens get vectors.
    """

    name: str
    head: Head
    kind: Kind = "cross-encoder"
    max_tokens: int = 512
    max_query_tokens: int = 64
    length_rule: LengthRule = "paper"
    segment_rows: int = 2
    calibration: Calibration = field(default_factory=Calibration)
    first_pass_weight: float = 0.0
    onnx: Mapping[str, str] = field(default_factory=dict)
    pooling: Pooling = "cls"
    modules: tuple[HeadStep, ...] = ()
    dimensions: int = 0
    provenance: Mapping[str, Any] = field(default_factory=dict)
    languages: tuple[str, ...] = ()
    query_prefix: str = ""
    document_prefix: str = ""
    weights: str = ""
    tokens: TokenVectors = field(default_factory=TokenVectors)
    vectors_weight: float = 0.0
    truncation_side: TruncationSide = "right"
    query_model: str = ""
    normalization: Literal["tokenizer", "sentencepiece"] = "tokenizer"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        bound = "at most" if self.is_encoder else "below"
        longest = self.max_query_tokens if self.kind == "late-interaction" else self.max_tokens
        max_allowed = longest if self.is_encoder else longest - 1
        if not 3 < self.max_query_tokens <= max_allowed:
            reason = f"max_query_tokens is {self.max_query_tokens}; it must be above 3 and {bound} max_tokens"
            raise ValueError(f"{reason}, which is {self.max_tokens}")
        for precision, graph in self.onnx.items():
            if not is_inside(graph):
                raise ValueError(f"onnx.{precision} is {graph!r}; a graph is a file in the model's folder")
        self._check_encoder()
        _ = self.advice  # `Advice` checks its numbers
        if unknown := [code for code in self.languages if not re.fullmatch(r"[a-z]{2,3}", code)]:
            raise ValueError(f"languages has {unknown[0]!r}; they are ISO 639 codes, such as en")
        if self.kind == "duo":
            self._check_duo()

    @property
    def advice(self) -> Advice:
        """The card's recommendations for ranking by the model's scores."""
        return Advice(self.first_pass_weight, self.is_encoder, self.languages, self.kind, self.vectors_weight)

    @property
    def is_encoder(self) -> bool:
        """Whether query and document are encoded separately."""
        return self.kind in ENCODERS

    @property
    def is_bi_encoder(self) -> bool:
        """Whether a text's encoding is one vector."""
        return self.kind == "bi-encoder"

    @property
    def to_vector(self) -> Steps:
        """The steps from an encoder's last hidden states to the final vector, or the final vectors of the tokens."""
        first = (HeadStep("first", size=self.dimensions),) if self.dimensions else ()
        unit = (HeadStep("unit"),) if self.head == "cosine" else ()
        return Steps((*self.modules, *first, *unit), (self.pooling,) if self.is_bi_encoder else ())

    def _check_encoder(self) -> None:
        if self.is_encoder != (self.head in SIMILARITIES):
            reason = "an encoder must have the head cosine or dot, and other kinds must have another head"
            raise ValueError(f"head is {self.head!r} and kind is {self.kind}; {reason}")
        for name in ("document_prefix", "modules", "dimensions"):
            if getattr(self, name) and not self.is_encoder:
                raise ValueError(f"{name} is for an encoder, and kind is {self.kind}")
        if self.kind == "late-interaction" and self.head != "cosine":
            raise ValueError(f"head is {self.head!r}; tokens' vectors are compared by their cosine")
        if self.tokens != TokenVectors() and self.kind != "late-interaction":
            raise ValueError(f"tokens is for late-interaction, and kind is {self.kind}")
        if self.query_model and not (self.is_bi_encoder and is_inside(self.query_model)):
            raise ValueError(f"query_model is {self.query_model!r}; it must be a subfolder of a bi-encoder's folder")
        if self.vectors_weight and self.kind != "cross-encoder":
            raise ValueError(f"vectors_weight is for a cross-encoder, and kind is {self.kind}")
        if self.dimensions < 0:
            raise ValueError(f"dimensions is {self.dimensions}; it must be 0 or above")

    def _check_duo(self) -> None:
        if self.head not in ("logit1", "logits2"):
            raise ValueError(f"head is {self.head!r}; a duo model has logit1 or logits2")
        if self.max_tokens < self.max_query_tokens + 6:
            raise ValueError(f"max_tokens is {self.max_tokens}, which leaves no room for a query and two documents")
        if self.segment_rows == 2:
            fix = "osrerank export --kind duo adds the third"
            raise ValueError(f"segment_rows is 2; a duo model needs a row each for the query and both documents; {fix}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``osrerank.json``; `read_card` reads it back."""
        content: dict[str, Any] = {"version": CARD_VERSION}
        for name in self.__slots__:
            if name == "languages":
                content |= {"languages": list(self.languages)} if self.languages else {}
            elif name == "tokens":
                content |= {name: self.tokens.to_json()} if self.kind == "late-interaction" else {}
            elif name == "modules":
                content |= {name: [step.to_json() for step in self.modules]} if self.modules else {}
            elif name in ("query_prefix", "document_prefix", "weights", "dimensions", "vectors_weight", "query_model"):
                content |= {name: getattr(self, name)} if getattr(self, name) else {}
            elif name == "truncation_side":
                content |= {name: self.truncation_side} if self.truncation_side != "right" else {}
            elif name == "normalization":
                content |= {name: self.normalization} if self.normalization != "tokenizer" else {}
            elif name == "pooling":
                content |= {"pooling": self.pooling} if self.is_bi_encoder else {}
            elif name != "calibration":
                content[name] = getattr(self, name)
        return {**content, "calibration": {"scale": self.calibration.scale, "offset": self.calibration.offset}}
