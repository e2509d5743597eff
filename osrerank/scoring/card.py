"""The model card, stored as ``osrerank.json``: how a model's input is built, and what its output means."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import PureWindowsPath
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from osrerank.scoring.modular.head import Head as VectorHead
from osrerank.scoring.modular.head import HeadStep, Mode
from osrerank.scoring.modular.token_vectors import TokenVectorSettings
from osrerank.scoring.modular.tokenizer_settings import TruncationSide
from osrerank.types import Advice

CARD_VERSION = 2
"""The version of the format of ``osrerank.json``."""

Kind = Literal["bi-encoder", "late-interaction", "cross-encoder", "duo"]
ENCODERS: tuple[Kind, ...] = ("bi-encoder", "late-interaction")
"""Kinds of models that encode each text separately."""
POINTWISE: tuple[Kind, ...] = (*ENCODERS, "cross-encoder")
"""Kinds of models that score one document at a time."""
DUO: tuple[Kind, ...] = ("duo",)
"""Kinds of models that compare two documents at a time."""
Head = Literal["logit1", "logits2", "next-sentence", "cosine", "dot"]
SIMILARITIES = ("cosine", "dot")
"""The heads of encoders."""
LengthRule = Literal["paper", "released"]
Normalization = Literal["tokenizer", "sentencepiece"]
Pooling = Mode
CHOICES = {
    "kind": get_args(Kind),
    "head": get_args(Head),
    "pooling": get_args(Pooling),
    "length_rule": get_args(LengthRule),
    "truncation_side": get_args(TruncationSide),
    "normalization": get_args(Normalization),
}
"""The valid values of each field that has a fixed list of them."""
OPTIONAL_FIELDS = (
    "modules", "dimensions", "languages", "query_prefix", "document_prefix", "weights", "vectors_weight",
    "truncation_side", "query_model", "normalization",
)  # fmt: skip
"""The fields that are not written to ``osrerank.json`` if they have their default values."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The affine map from a model's raw score to a logit: ``scale * raw + offset``."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(f"the calibration's scale is {self.scale}; it must be above 0 to keep the order")


def is_inside(name: str) -> bool:
    """Return whether a relative path stays inside its folder: ``onnx/a.onnx`` does, ``../a.onnx`` does not."""
    path = PureWindowsPath(name)  # also parses POSIX paths
    return not path.anchor and ".." not in path.parts


def logistic(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return the probabilities ``(n,)`` of logits ``(n,)`` by the logistic function, without overflow."""
    exponent = -np.clip(logits.astype(np.float64), -700, 700)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(exponent))
    return probabilities


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model's input is built, and what its output means.

    The attributes below are grouped: first the model, then its input, its scores, and what only encoders have.

    Attributes:
        name: the model's name, for reports.
        kind: ``bi-encoder`` encodes ``[CLS] q [SEP]`` and ``[CLS] d [SEP]`` separately and compares their vectors.
            ``late-interaction`` does the same with one vector for each token. Both are encoders. ``cross-encoder``
            scores ``[CLS] q [SEP] d [SEP]``. ``duo`` scores ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``.
        onnx: precision -> the graph's file, relative to the directory, such as ``{"int8": "model_int8.onnx"}``.
        provenance: base model, training data, recipe, licence and evaluation results.
        languages: ISO 639 codes of the languages that the model supports, or () if they are unknown.

        max_tokens: maximum number of tokens in a sequence (for an encoder, in a document), with special tokens.
        max_query_tokens: maximum number of tokens in the query, with [CLS] and [SEP].
        length_rule: how ``max_tokens`` is divided among query and documents. With ``paper``, a cross-encoder uses all
            tokens. A duo model reserves ``max_query_tokens`` for the query, and each document gets half of the rest.
            ``released`` follows the published code: a cross-encoder leaves one token unused, and a duo model reserves
            only as many tokens as the query has.
        segment_rows: number of rows in the model's segment embedding table: usually 2 for a cross-encoder and 3 for a
            duo model, or 0 if the model has no such table. It is 1 if the tokenizer gives all tokens the same segment.
        truncation_side: the side at which a long text is truncated: ``right`` is the end, ``left`` the beginning.
        normalization: what normalises texts: ``tokenizer``, the library `tokenizers` as the tokenizer's file says, or
            ``sentencepiece``, `osrerank.scoring.charsmap` by the character map in that file.
        query_prefix: the prefix of every query. Only an encoder's ``max_query_tokens`` includes it.

        head: the output. ``logit1`` is one logit. ``logits2`` is two logits, of which the second means relevant.
            ``next-sentence`` is BERT's two next-sentence logits, of which the second is the score, without softmax, as
            in Birch. ``cosine`` and ``dot`` are the cosine and the dot product of an encoder's two vectors.
        calibration: the map from a raw score to a logit: ``scale * raw + offset``.
        first_pass_weight: the weight w in a linear blend, which scores a hit by logit + w * s / s_max, where s is its
            first-pass score and s_max the query's highest one. A weight of 0 turns the blend off.
        vectors_weight: for a cross-encoder, the weight of the bi-encoder's logit in ``vectors-mono``, relative to the
            logit of this model.

        document_prefix: the prefix of every document.
        pooling: for a bi-encoder, the way to get a text's vector from the hidden states of its tokens. ``cls`` uses the
            state of [CLS], ``lasttoken`` the last token's state. ``mean`` and ``max`` are the mean and the maximum of
            all states. ``weightedmean`` is a mean in which the n-th token counts n times.
        modules: the steps after the pooling, such as a dense layer, in order.
        dimensions: the number of dimensions to which vectors are truncated. 0 keeps all of them.
        weights: a digest of the weights that a graph was exported from, so that vectors of the graph and of the weights
            are interchangeable. If empty, the digest of the model's files is used.
        query_model: for a bi-encoder, the subfolder of the model that encodes queries. If empty, this model does so.
        tokens: for late interaction, marker tokens, query expansion, and the tokens that get vectors.
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
    tokens: TokenVectorSettings = field(default_factory=TokenVectorSettings)
    vectors_weight: float = 0.0
    truncation_side: TruncationSide = "right"
    query_model: str = ""
    normalization: Normalization = "tokenizer"

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        self._check_query_length()
        for precision, graph in self.onnx.items():
            if not is_inside(graph):
                raise ValueError(f"onnx.{precision} is {graph!r}; it must be a file in the model's folder")
        self._check_encoder()
        _ = self.advice  # `Advice` validates its numbers
        for code in self.languages:
            if not re.fullmatch(r"[a-z]{2,3}", code):
                raise ValueError(f"languages contains {code!r}; it must list ISO 639 codes, such as en")
        if self.kind == "duo":
            self._check_duo()

    @property
    def advice(self) -> Advice:
        """The card's recommendations for ranking by the model's scores."""
        return Advice(
            first_pass_weight=self.first_pass_weight,
            passages=self.is_encoder,
            languages=self.languages,
            kind=self.kind,
            vectors_weight=self.vectors_weight,
        )

    @property
    def is_encoder(self) -> bool:
        """Whether the model encodes each text separately."""
        return self.kind in ENCODERS

    @property
    def is_bi_encoder(self) -> bool:
        """Whether the model encodes a text as one vector."""
        return self.kind == "bi-encoder"

    @property
    def vector_head(self) -> VectorHead:
        """The steps that turn an encoder's last hidden states into a text's vector, or into its tokens' vectors."""
        steps = list(self.modules)
        if self.dimensions:
            steps.append(HeadStep("first", size=self.dimensions))
        if self.head == "cosine":
            steps.append(HeadStep("unit"))
        return VectorHead(tuple(steps), (self.pooling,) if self.is_bi_encoder else ())

    def _check_query_length(self) -> None:
        longest_query = self.max_tokens if self.is_encoder else self.max_tokens - 1
        is_too_long = self.max_query_tokens > longest_query and self.kind != "late-interaction"
        if self.max_query_tokens <= 3 or is_too_long:
            limit = f"{'at most' if self.is_encoder else 'below'} max_tokens, which is {self.max_tokens}"
            raise ValueError(f"max_query_tokens is {self.max_query_tokens}; it must be above 3 and {limit}")

    def _check_encoder(self) -> None:
        if self.is_encoder != (self.head in SIMILARITIES):
            reason = "an encoder must have the head cosine or dot, and other kinds must have another head"
            raise ValueError(f"head is {self.head!r} and kind is {self.kind}; {reason}")
        for name in ("document_prefix", "modules", "dimensions"):
            if getattr(self, name) and not self.is_encoder:
                raise ValueError(f"{name} is set, but kind is {self.kind!r}, and only an encoder can have {name}")
        if self.kind == "late-interaction" and self.head != "cosine":
            raise ValueError(f"head is {self.head!r}; late interaction needs the head cosine")
        if self.tokens != TokenVectorSettings() and self.kind != "late-interaction":
            raise ValueError(f"tokens is set, but kind is {self.kind!r}, and only late-interaction can have tokens")
        if self.query_model and not (self.is_bi_encoder and is_inside(self.query_model)):
            reason = "only a bi-encoder can have a query model, which must be a subfolder of the model's folder"
            raise ValueError(f"query_model is {self.query_model!r}; {reason}")
        if self.vectors_weight and self.kind != "cross-encoder":
            raise ValueError(f"vectors_weight is set, but kind is {self.kind!r}, and only a cross-encoder can have it")
        if self.dimensions < 0:
            raise ValueError(f"dimensions is {self.dimensions}; it must be 0 or above")

    def _check_duo(self) -> None:
        if self.head not in ("logit1", "logits2"):
            raise ValueError(f"head is {self.head!r}; a duo model needs the head logit1 or logits2")
        if self.max_tokens < self.max_query_tokens + 6:
            raise ValueError(
                f"max_tokens is {self.max_tokens}; a query and two documents need {self.max_query_tokens + 6} or more"
            )
        if self.segment_rows == 2:
            need = "a duo model needs a row each for the query and both documents"
            raise ValueError(f"segment_rows is 2; {need}; osrerank export --kind duo adds the third row")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``osrerank.json``, which `read_card` reads."""
        defaults = {card_field.name: card_field.default for card_field in fields(self)}
        content = {name: getattr(self, name) for name in defaults}
        for name in OPTIONAL_FIELDS:
            if content[name] == defaults[name]:
                del content[name]
        if self.languages:
            content["languages"] = list(self.languages)
        if self.modules:
            content["modules"] = [step.to_json() for step in self.modules]
        if not self.is_bi_encoder:
            del content["pooling"]
        if self.kind == "late-interaction":
            content["tokens"] = self.tokens.to_json()
        else:
            del content["tokens"]
        del content["calibration"]
        calibration = {"scale": self.calibration.scale, "offset": self.calibration.offset}
        return {"version": CARD_VERSION, **content, "calibration": calibration}
