"""The model card: how a model reads texts, and how its scores are meant."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from osrerank.errors import ConfigError

CARD_VERSION = 1
SLACK = 1e-3
"""A quotient above a whole number by less counts as it, so that no rounding decides how many states there are."""
POOLING = ("query_pool_factor", "pool_factor")
"""Where a card's biases have its `PoolFactors`."""
CLOSED = "closed"
SEGMENTS = {"mono": 2, "duo": 3}
"""Segments of a sequence: the query, and one or two documents."""
BLOCKED = -1e4
"""Added to a logit that must not count: exp of it is 0 in float32 and float16, and it overflows in neither."""
BEYOND = 2.0
"""More than any cosine: where pieces are sorted by theirs, it puts one last, and its negative first."""
CHOICES = {
    "kind": ("mono", "duo"),
    "head": ("logit1", "logits2", "next-sentence", "cosine"),
    "layout": ("standard", "cross-bias"),
    "length_rule": ("paper", "released"),
}

Kind = Literal["mono", "duo"]
Head = Literal["logit1", "logits2", "next-sentence", "cosine"]
Layout = Literal["standard", "cross-bias"]
LengthRule = Literal["paper", "released"]


@dataclass(frozen=True, slots=True)
class Calibration:
    """The affine map from a raw score to a logit: ``scale * raw + offset``."""

    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(
                f"the calibration's scale is {self.scale}; it must be above 0, or the order would turn round"
            )


class PoolFactors(NamedTuple):
    """Pieces for each state of a query and of a document, on average; 1 where each piece has its own."""

    query: float = 1.0
    document: float = 1.0

    @property
    def pools(self) -> bool:
        """Whether pieces share states."""
        return max(self) > 1

    def of_segments(self, segments: int) -> tuple[float, ...]:
        """Return the factor of each of so many segments: the query, then the documents."""
        return (self.query, *[self.document] * (segments - 1))

    def states(self, segments: npt.NDArray[np.int64]) -> int:
        """Return how many states a sequence of these segments ``(tokens,)`` gets: 0 a query's, 1 and 2 documents'."""
        if not self.pools:
            return len(segments)
        pieces = np.bincount(segments)
        parts = zip(pieces.tolist(), self.of_segments(len(pieces)), strict=True)
        return sum(states_of(count, factor) for count, factor in parts if count)

    def for_card(self) -> dict[str, float]:
        """Return what a card's biases have of them."""
        return {name: factor for name, factor in zip(POOLING, self, strict=True) if factor != 1}


@dataclass(frozen=True, slots=True)
class CrossBias:
    """What the layout adds to a bi-encoder.

    Attributes:
        query: added to the logits of query rows on document columns; ``closed`` for none of it.
        document: added to the logits of document rows on query columns.
        temperature: factor t of the cosine.
        other: added to the logits of one document's rows on the other's columns; of no account for mono.
        pool_factor: pieces of a document for each of its states, on average; 1 for a state each.
        query_pool_factor: the same of the query.
    """

    query: float | str = -2.0
    document: float | str = CLOSED
    temperature: float = 20.0
    other: float | str = -4.0
    pool_factor: float = 1.0
    query_pool_factor: float = 1.0

    @property
    def pool_factors(self) -> PoolFactors:
        """Pieces of a query and of a document for each of their states."""
        return PoolFactors(self.query_pool_factor, self.pool_factor)

    def amounts(self) -> tuple[float, float, float]:
        """Return the biases ``query``, ``document`` and ``other`` as numbers."""
        sides = (self.query, self.document, self.other)
        query, document, other = (BLOCKED if side == CLOSED else float(side) for side in sides)
        return query, document, other

    def seen_from(self, row: int, segments: int) -> list[tuple[int, float]]:
        """Return which of so many segments the rows of one see beside their own, and what is added there."""
        others = [segment for segment in range(segments) if segment != row]
        sides = [self.query if row == 0 else self.document if segment == 0 else self.other for segment in others]
        return [(segment, float(side)) for segment, side in zip(others, sides, strict=True) if side != CLOSED]

    def for_card(self, kind: Kind) -> dict[str, Any]:
        """Return the biases that a card of this kind has."""
        named = {"query": self.query, "document": self.document, "temperature": self.temperature}
        return {**named, **self.pool_factors.for_card(), **({"other": self.other} if kind == "duo" else {})}


@dataclass(frozen=True, slots=True)
class ModelCard:
    """How a model reads texts and what its output means.

    Attributes:
        name: the model's name, for reports.
        kind: ``mono`` scores (query, document), ``duo`` compares (query, document, document).
        head: what comes out: one logit; two logits, index 1 relevant; the logits of
            BERT's next-sentence head, of which Birch's checkpoints use index 1 alone, without softmax; t * cosine.
        layout: ``standard`` is ``[CLS] q [SEP] d [SEP]``, for duo ``[CLS] q [SEP] d_i [SEP] d_j [SEP]``; ``cross-bias``
            is ``[CLS] q [SEP] [CLS] d [SEP]``, for duo ``[CLS] q [SEP] [CLS] d_i [SEP] [CLS] d_j [SEP]``.
        max_tokens: most tokens of a sequence, specials among them.
        max_query_tokens: most tokens of the query, with the two specials around it.
        length_rule: ``paper`` fills ``max_tokens``, for duo with half of what the longest query leaves a document;
            ``released`` does as the published codes: mono leaves one token unused, and duo's documents each get half of
            what their query leaves.
        segment_rows: rows of the token type table: two for mono, three for duo; 0 or 1 for models without segments.
            ``cross-bias`` reads the first row alone, so that two do for duo.
        calibration: raw score -> logit.
        first_pass_weight: what the best first-pass score is worth beside the logits, where the model orders better with
            its help (`osrerank.stages.interpolate`, "linear"); 0 where it orders by itself, as the papers' models do.
        prior_share: of a duo model, the share in a pair's logit of the difference of the mono model's, where it orders
            better with their help (`osrerank.stages.duo`); 0 for duoBERT as the paper has it.
        onnx: precision (``int8``, ``fp32``) -> file, relative to the directory.
        biases: for ``cross-bias``, the numbers of `CrossBias`; ``other`` for duo alone.
        provenance: base model, training data, recipe, licence, measures.
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
    biases: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(choices)}")
        if not 3 < self.max_query_tokens < self.max_tokens:
            raise ValueError(f"max_query_tokens is {self.max_query_tokens}; it must be above 3 and below max_tokens")
        if not self.first_pass_weight >= 0:
            raise ValueError(f"first_pass_weight is {self.first_pass_weight}; it must be 0 or above")
        for name, factor in zip(POOLING, self.pool_factors, strict=True):
            if not 1 <= factor < math.inf:
                raise ValueError(f"biases: {name} is {factor}; it must be 1 or above")
        if not 0 <= self.prior_share < 1:
            raise ValueError(f"prior_share is {self.prior_share}; it must be 0 or above and below 1")
        if self.kind == "duo":
            self._check_duo()

    @property
    def pool_factors(self) -> PoolFactors:
        """Pieces of a query and of a document for each of their states."""
        return PoolFactors(*(float(self.biases.get(name, 1.0)) for name in POOLING))

    @property
    def is_antisymmetric(self) -> bool:
        """Whether a duo model's score changes its sign, and nothing else, where the documents change places."""
        return self.kind == "duo" and self.layout == "cross-bias"

    def _check_duo(self) -> None:
        heads = ("cosine",) if self.layout == "cross-bias" else ("logit1", "logits2")
        if self.head not in heads:
            raise ValueError(f"head is {self.head!r}; a duo model has {' or '.join(heads)} in the layout {self.layout}")
        if self.max_tokens < self.max_query_tokens + 6:
            raise ValueError(f"max_tokens is {self.max_tokens}: two documents have no room beside the query")
        if self.layout == "standard" and self.segment_rows == 2:
            fix = "osrerank export --kind duo adds the third"
            raise ValueError(f"segment_rows is 2; a duo model tells query, first and second document apart; {fix}")

    def to_json(self) -> dict[str, Any]:
        """Return the content of ``osrerank.json``; `read_card` reads it back."""
        content = {name: getattr(self, name) for name in self.__slots__ if name != "calibration"}
        calibration = {"scale": self.calibration.scale, "offset": self.calibration.offset}
        return {"version": CARD_VERSION, **content, "calibration": calibration}


def states_of(pieces: int, pool_factor: float) -> int:
    """Return how many states a query or a document of so many pieces gets."""
    return max(1, math.ceil(pieces / pool_factor - SLACK))


def with_pool_factors(card: ModelCard, *, query: float | None = None, document: float | None = None) -> ModelCard:
    """Return a card with other pool factors, without what was measured or fitted at the old ones.

    Args:
        card: the card.
        query: a query's pieces for each of its states; None for what the card says.
        document: the same of a document.

    Raises:
        ConfigError: the layout knows none, or one is below 1.
    """
    old = card.pool_factors
    new = PoolFactors(old.query if query is None else query, old.document if document is None else document)
    if new == old:
        return card
    if card.layout != "cross-bias":
        raise ConfigError("texts are pooled in the layout cross-bias alone", setting="pool_factor")
    kept = {name: value for name, value in card.biases.items() if name not in POOLING}
    provenance = {name: value for name, value in card.provenance.items() if name != "measures"}
    try:
        return replace(card, biases={**kept, **new.for_card()}, calibration=Calibration(), provenance=provenance)
    except ValueError as error:
        raise ConfigError(str(error), setting="pool_factor") from None


def beside_another(query_bias: float | str) -> float | str:
    """Return a mono model's bias of query rows on document columns as a duo model's: less by log 2.

    So the two documents together weigh what the one did, where they are alike: a softmax adds up exponentials.
    """
    return query_bias if isinstance(query_bias, str) else query_bias - math.log(2)


def as_duo(biases: Mapping[str, Any], other: float | str) -> dict[str, Any]:
    """Return a mono model's biases as a duo model's, with the one between the documents."""
    return {**biases, "query": beside_another(biases["query"]), "other": other}
