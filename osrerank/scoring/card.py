"""The model card: how a model reads texts, and what its scores mean."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError
from osrerank.types import Advice

CARD_VERSION = 1
SLACK = 1e-3
"""Subtracted before rounding up, so that rounding errors cannot change the number of states."""
CLOSED = "closed"
SEGMENTS = {"mono": 2, "duo": 3}
"""Segments of a sequence: the query, and one or two documents."""
BLOCKED = -1e4
"""Added to logits that must not count: its exp is 0 in float32 and float16, and it overflows in neither."""
BEYOND = 2.0
"""Greater than any cosine: as a sort key it puts a piece last, and its negative puts it first."""
CHOICES = {
    "kind": ("mono", "duo"),
    "head": ("logit1", "logits2", "next-sentence", "cosine"),
    "layout": ("standard", "cross-bias", "joined"),
    "length_rule": ("paper", "released"),
}

Kind = Literal["mono", "duo"]
Head = Literal["logit1", "logits2", "next-sentence", "cosine"]
Layout = Literal["standard", "cross-bias", "joined"]
LengthRule = Literal["paper", "released"]
Rows = Literal["cls", "all"]
Pooling = Literal["cls", "mean"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The affine map from a raw score to a logit: ``scale * raw + offset``."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(
                f"the calibration's scale is {self.scale}; it must be above 0, or the order would be reversed"
            )


def logistic(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return the probabilities of logits ``(n,)``, in float64; no logit is too large for it."""
    exponent = -np.clip(logits.astype(np.float64), -700, 700)
    probabilities: npt.NDArray[np.float64] = 1 / (1 + np.exp(exponent))
    return probabilities


@dataclass(frozen=True, slots=True)
class CrossBias:
    """What the layout ``cross-bias`` adds to a bi-encoder; the card's field ``biases``.

    Attributes:
        query: added to the attention logits of query rows on document columns; ``closed``: they see none of it.
        document: added to the logits of document rows on query columns, likewise.
        temperature: factor t of the cosine, above 0.
        other: added to the logits of one document's rows on the other's columns; a mono model has no such rows.
        pool_factor: pieces of a document for each of its states, on average; 1 where each piece has its own.
    """

    query: float | str = -2.0
    document: float | str = CLOSED
    temperature: float = 20.0
    other: float | str = -4.0
    pool_factor: float = 1.0

    def __post_init__(self) -> None:
        for side in ("query", "document", "other"):
            value = getattr(self, side)
            if value != CLOSED and not _is_finite(value):
                raise ValueError(f"biases: {side} is {value!r}; it must be a number or {CLOSED!r}")
        if not (_is_finite(self.temperature) and self.temperature > 0):
            raise ValueError(f"biases: temperature is {self.temperature!r}; it must be a number above 0")
        if not (_is_finite(self.pool_factor) and self.pool_factor >= 1):
            raise ValueError(f"biases: pool_factor is {self.pool_factor!r}; it must be 1 or above")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a card's ``biases``.

        Raises:
            ValueError: a field is unknown, or a value is out of its range.
        """
        return cls(**_known(cls, content, "biases"))

    def to_json(self, kind: Kind) -> dict[str, Any]:
        """Return the ``biases`` of a card of this kind."""
        content: dict[str, Any] = {"query": self.query, "document": self.document, "temperature": self.temperature}
        if self.pools:
            content["pool_factor"] = self.pool_factor
        return content | ({"other": self.other} if kind == "duo" else {})

    @property
    def pools(self) -> bool:
        """Whether pieces of a document share states."""
        return self.pool_factor > 1

    def states(self, segments: npt.NDArray[np.int64]) -> int:
        """Return how many states a sequence of these segments ``(tokens,)`` gets: 0 a query's, 1 and 2 documents'."""
        if not self.pools:
            return len(segments)
        query, *documents = np.bincount(segments).tolist()
        return int(query) + sum(states_of(pieces, self.pool_factor) for pieces in documents if pieces)

    def amounts(self) -> tuple[float, float, float]:
        """Return the biases ``query``, ``document`` and ``other`` as numbers."""
        sides = (self.query, self.document, self.other)
        query, document, other = (BLOCKED if side == CLOSED else float(side) for side in sides)
        return query, document, other

    def seen_from(self, row: int, segments: int) -> list[tuple[int, float]]:
        """Return the other segments that the rows of one segment see, and the bias added there."""
        others = [segment for segment in range(segments) if segment != row]
        sides = [self.query if row == 0 else self.document if segment == 0 else self.other for segment in others]
        return [(segment, float(side)) for segment, side in zip(others, sides, strict=True) if side != CLOSED]

    def as_duo(self, other: float | str) -> Self:
        """Return a mono model's biases as a duo model's.

        The query's bias falls by log 2: the two documents together then weigh what the one did, where they are alike,
        because a softmax adds up exponentials.

        Args:
            other: the bias between the documents.
        """
        query = self.query if isinstance(self.query, str) else self.query - math.log(2)
        return replace(self, query=query, other=other)


@dataclass(frozen=True, slots=True)
class Joining:
    """How the query looks at the document in the layout ``joined``; the card's field ``joining``.

    Attributes:
        layers: the last m layers are joined; with 0 the model is the bi-encoder.
        bias: g, added to the attention logits of the query's rows on the document's.
        rows: which of the query's rows look: its [CLS] row alone, while the others stay as they are without the
            document, or all.
        pooling: ``cls``: a text's vector is its [CLS] state; ``mean``: the mean of all its states.
        cosine_share: share of the bi-encoder's own cosine in the score, from 0 to 1.
        query_prefix: stands before every query.
        document_prefix: stands before every document.
        own_weights: whether the query's rows that look at the document go through layers of their own weights, which
            were trained on the document's states as they are; otherwise through the encoder's.
    """

    layers: int = 1
    bias: float = -3.0
    rows: Rows = "cls"
    pooling: Pooling = "cls"
    cosine_share: float = 0.0
    query_prefix: str = ""
    document_prefix: str = ""
    own_weights: bool = False

    def __post_init__(self) -> None:
        for name, choices in (("rows", ("cls", "all")), ("pooling", ("cls", "mean"))):
            if getattr(self, name) not in choices:
                raise ValueError(f"joining: {name} is {getattr(self, name)!r}; it must be {' or '.join(choices)}")
        if type(self.layers) is not int or self.layers < 0:
            raise ValueError(f"joining: layers is {self.layers!r}; it must be a number of layers, 0 for none")
        if not _is_finite(self.bias):
            raise ValueError(f"joining: bias is {self.bias!r}; it must be a number")
        if not (_is_finite(self.cosine_share) and 0 <= self.cosine_share <= 1):
            raise ValueError(f"joining: cosine_share is {self.cosine_share!r}; it must be from 0 to 1")
        if self.own_weights and not self.layers:
            raise ValueError("joining: own_weights is true, and no layer is joined; set it to false")
        if self.layers and self.rows == "cls" and self.pooling == "mean":
            raise ValueError("joining: with pooling mean all rows of the query look at the document; set rows to all")

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Read a card's ``joining``.

        Raises:
            ValueError: a field is unknown, or a value is out of its range.
        """
        return cls(**_known(cls, content, "joining"))

    def to_json(self) -> dict[str, Any]:
        """Return the card's ``joining``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def as_duo(self) -> Self:
        """Return a mono model's joining as that of a duo model, as `CrossBias.as_duo` does."""
        return replace(self, bias=self.bias - math.log(2))


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model reads texts and what its output means.

    Attributes:
        name: the model's name, for reports.
        kind: ``mono`` scores (query, document), ``duo`` compares (query, document, document).
        head: what comes out: one logit; two logits, index 1 relevant; the logits of
            BERT's next-sentence head, of which Birch's checkpoints use index 1 alone, without softmax; t * cosine.
        layout: ``standard`` is ``[CLS] q [SEP] d [SEP]``, for duo ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``; ``cross-bias``
            is ``[CLS] q [SEP] [CLS] d [SEP]``, for duo ``[CLS] q [SEP] [CLS] d_i [SEP] [CLS] d_j [SEP]``; ``joined``
            is ``[CLS] q [SEP]`` and ``[CLS] d [SEP]`` apart, joined in the last layers.
        max_tokens: most tokens of a sequence, specials among them; in the layout ``joined`` of each text.
        max_query_tokens: most tokens of the query, with the two specials around it.
        length_rule: ``paper`` fills ``max_tokens``, for duo with half of what the longest query leaves a document;
            ``released`` does as the published codes: mono leaves one token unused, and duo's documents each get half of
            what their query leaves.
        segment_rows: rows of the token type table: two for mono, three for duo; 0 or 1 for models without segments.
            ``cross-bias`` reads only the first row, so two are enough for duo.
        calibration: raw score -> logit.
        first_pass_weight: see `Advice`.
        prior_share: see `Advice`.
        onnx: precision (``int8``, ``fp32``) -> file, relative to the directory.
        cross_bias: what the layout ``cross-bias`` adds; other layouts ignore it. In the file: ``biases``.
        joining: how the layout ``joined`` joins query and document; other layouts ignore it.
        provenance: base model, training data, recipe, licence, measures.
        languages: see `Advice`.
        query_prefix: stands before every query in the layout ``standard``, whose ``max_query_tokens`` do not count it.
    """

    name: str
    head: Head
    kind: Kind = "mono"
    layout: Layout = "standard"
    max_tokens: int = 512
    max_query_tokens: int = 64
    length_rule: LengthRule = "paper"
    segment_rows: int = 2
    calibration: Calibration = field(default_factory=Calibration)
    first_pass_weight: float = 0.0
    prior_share: float = 0.0
    onnx: Mapping[str, str] = field(default_factory=dict)
    cross_bias: CrossBias = field(default_factory=CrossBias)
    joining: Joining = field(default_factory=Joining)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    languages: tuple[str, ...] = ()
    query_prefix: str = ""

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        bound = "at most" if self.layout == "joined" else "below"
        if not 3 < self.max_query_tokens < self.max_tokens + (bound == "at most"):
            reason = f"max_query_tokens is {self.max_query_tokens}; it must be above 3 and {bound} max_tokens"
            raise ValueError(f"{reason}, which is {self.max_tokens}")
        if self.query_prefix and self.layout != "standard":
            raise ValueError(f"query_prefix is for the layout standard, this one is {self.layout}")
        if self.layout == "joined" and self.head != "cosine":
            raise ValueError(f"head is {self.head!r}; in the layout joined it is cosine")
        _ = self.advice  # checks its numbers
        if unknown := [code for code in self.languages if not re.fullmatch(r"[a-z]{2,3}", code)]:
            raise ValueError(f"languages has {unknown[0]!r}; they are ISO 639 codes, such as en")
        if self.kind == "duo":
            self._check_duo()

    @property
    def advice(self) -> Advice:
        """What the model recommends for ordering by its scores."""
        passages = self.layout == "joined"
        return Advice(self.first_pass_weight, self.prior_share, passages=passages, languages=self.languages)

    @property
    def is_antisymmetric(self) -> bool:
        """Whether exchanging the two documents only changes the sign of a duo model's score."""
        return self.kind == "duo" and self.layout != "standard"

    def _check_duo(self) -> None:
        heads = ("logit1", "logits2") if self.layout == "standard" else ("cosine",)
        if self.head not in heads:
            raise ValueError(f"head is {self.head!r}; a duo model has {' or '.join(heads)} in the layout {self.layout}")
        if self.layout != "joined" and self.max_tokens < self.max_query_tokens + 6:
            raise ValueError(f"max_tokens is {self.max_tokens}; that leaves two documents no room beside the query")
        if self.layout == "standard" and self.segment_rows == 2:
            fix = "osrerank export --kind duo adds the third"
            raise ValueError(f"segment_rows is 2; a duo model needs a row each for the query and both documents; {fix}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``osrerank.json``; `read_card` reads it back."""
        content: dict[str, Any] = {"version": CARD_VERSION}
        for name in self.__slots__:
            if name == "cross_bias":
                content["biases"] = self.cross_bias.to_json(self.kind) if self.layout == "cross-bias" else {}
            elif name == "joining":
                content |= {"joining": self.joining.to_json()} if self.layout == "joined" else {}
            elif name == "languages":
                content |= {"languages": list(self.languages)} if self.languages else {}
            elif name == "query_prefix":
                content |= {"query_prefix": self.query_prefix} if self.query_prefix else {}
            elif name != "calibration":
                content[name] = getattr(self, name)
        return {**content, "calibration": {"scale": self.calibration.scale, "offset": self.calibration.offset}}


def join_keys(card: ModelCard, precision: str) -> tuple[str, ...]:
    """Return the keys, in a card's ``onnx``, of the graphs beside the encoder's, whose key is the precision alone.

    There are three where one layer is joined, and there is one where more are.
    """
    if card.layout != "joined" or not card.joining.layers:
        return ()
    if card.joining.layers == 1:
        return f"{precision}-queries", f"{precision}-contexts", f"{precision}-scores"
    return (f"{precision}-join",)


def states_of(pieces: int, pool_factor: float) -> int:
    """Return how many states a document of this many pieces gets."""
    return max(1, math.ceil(pieces / pool_factor - SLACK))


def with_pool_factor(card: ModelCard, factor: float | None) -> ModelCard:
    """Return a card with another pool factor, without what was measured or fitted at the old one.

    Args:
        card: the card.
        factor: a document's pieces for each of its states; None for the card's own.

    Raises:
        ConfigError: the layout does not pool texts, or the factor is below 1.
    """
    if factor is None or factor == card.cross_bias.pool_factor:
        return card
    if card.layout != "cross-bias":
        raise ConfigError("only models of the layout cross-bias can pool texts", setting="pool_factor")
    provenance = {name: value for name, value in card.provenance.items() if name != "measures"}
    try:
        cross_bias = replace(card.cross_bias, pool_factor=factor)
    except ValueError as error:
        raise ConfigError(str(error), setting="pool_factor") from None
    return replace(card, cross_bias=cross_bias, calibration=Calibration(), provenance=provenance)


def _known(kind: type, content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a part of a card if it has no other fields than a dataclass has."""
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(content) - known):
        raise ValueError(f"{name}: {unknown[0]} is unknown; the fields are {', '.join(sorted(known))}")
    return content


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
