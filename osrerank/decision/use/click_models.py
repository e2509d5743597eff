"""How much documents attract clicks, without the advantage of the places that they were shown at.

Two estimators over pages:

- **COEC**, clicks over expected clicks (Zhang, Jones: Comparing click logs and editorial labels for training query
  rewriting, WWW 2007 workshop on query log analysis): ``COEC(q, d) = clicks / sum over its impressions of CTR(rank)``,
  where ``CTR(rank)`` is the click-through rate of all documents at that rank. 1 is what the places alone give.
- **PBM**, the position-based model (Craswell, Zoeter, Taylor, Ramsey: An experimental comparison of click position-bias
  models, WSDM 2008), by expectation maximisation (Chuklin, Markov, de Rijke: Click models for web search, 2015,
  section 4.2): ``P(click) = examined(rank) * attraction(q, d)``.

COEC takes all of a rank's click-through rate for the rank's own, although better documents stand higher; it needs no
variation. PBM tells the two apart where documents were seen at several ranks, as interleaving has it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from osrerank.decision.use.clicks import ShownPage, folded
from osrerank.errors import EvaluationError

Model = Literal["pbm", "coec"]
MODELS: tuple[Model, ...] = ("pbm", "coec")
PRIOR = 1.0
"""Clicks that are added to a document's clicks and to those expected, so that few impressions stay near 1 (COEC)."""
ROUNDS, CHANGE = 500, 1e-6
"""The most rounds of expectation maximisation, and the change of a probability that ends it."""
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Attraction:
    """How much a document attracts clicks for a query.

    Attributes:
        query: folded: all who mean it, whatever they typed.
        doc_id: the document's.
        value: higher is better; a probability in (0, 1) of PBM, 1 for what its places give of COEC.
        clicks: that it got.
        impressions: pages that it was on.
    """

    query: str
    doc_id: str
    value: float
    clicks: int
    impressions: int


@dataclass(frozen=True, slots=True)
class Cells:
    """The pages as counts: one cell for each query, document and rank.

    Attributes:
        pairs: (query, document) of each number.
        pair: ``(n_cells,)`` numbers of pairs.
        rank: ``(n_cells,)`` ranks, from 0.
        shown, clicked: ``(n_cells,)`` counts.
    """

    pairs: tuple[tuple[str, str], ...]
    pair: Ints
    rank: Ints
    shown: Floats
    clicked: Floats

    @classmethod
    def of(cls, pages: Iterable[ShownPage]) -> "Cells":
        counts: dict[tuple[str, str, int], list[int]] = {}
        for page in pages:
            query = folded(page.query)
            for rank, doc_id in enumerate(page.doc_ids, start=page.first_rank - 1):
                cell = counts.setdefault((query, doc_id, rank), [0, 0])
                cell[0] += 1
                cell[1] += doc_id in page.clicked
        if not counts:
            raise EvaluationError("there are no pages to learn from: record searches with ext.ubi, or give a file")
        numbers: dict[tuple[str, str], int] = {}
        pair = [numbers.setdefault((query, doc_id), len(numbers)) for query, doc_id, _rank in counts]
        values = np.array(list(counts.values()), dtype=np.float64)
        ranks = np.array([rank for _query, _doc_id, rank in counts], dtype=np.int64)
        return cls(tuple(numbers), np.array(pair, dtype=np.int64), ranks, values[:, 0], values[:, 1])

    def by_pair(self, values: Floats) -> Floats:
        """Return the sums ``(n_pairs,)`` of cells' values."""
        return np.bincount(self.pair, values, len(self.pairs)).astype(np.float64)

    def by_rank(self, values: Floats) -> Floats:
        """Return the sums ``(n_ranks,)`` of cells' values."""
        return np.bincount(self.rank, values).astype(np.float64)

    @property
    def moved(self) -> int:
        """Pairs that were shown at more than one rank."""
        return int(np.count_nonzero(np.bincount(self.pair, minlength=len(self.pairs)) > 1))


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a model learnt.

    Attributes:
        model: its name.
        attractions: of each query and document.
        by_rank: for each rank, of PBM the probability that it is looked at, relative to the first; of COEC its
            click-through rate.
        moved: pairs of query and document that were shown at more than one rank.
        rounds: of expectation maximisation; 0 of COEC.
    """

    model: Model
    attractions: tuple[Attraction, ...]
    by_rank: tuple[float, ...]
    moved: int
    rounds: int = 0


def learn(pages: Sequence[ShownPage], model: Model = "pbm") -> Learnt:
    """Return how much each document attracts, by a model.

    Raises:
        EvaluationError: there are no pages or no clicks; or, for PBM, no document was shown at more than one rank.
    """
    cells = Cells.of(pages)
    if not cells.clicked.any():
        raise EvaluationError(f"there is no click on {len(pages):,} pages: check which action_name a click has")
    if model == "coec":
        values, by_rank = coec(cells)
        rounds = 0
    else:
        if not cells.moved:
            reason = "each document was always shown at one rank, so its place and its attraction cannot be told apart"
            raise EvaluationError(f"{reason}: interleave two rankings for a while, or use --model coec")
        values, by_rank, rounds = position_based(cells)
    clicks, shown = cells.by_pair(cells.clicked), cells.by_pair(cells.shown)
    attractions = tuple(
        Attraction(query, doc_id, float(values[number]), int(clicks[number]), int(shown[number]))
        for number, (query, doc_id) in enumerate(cells.pairs)
    )
    return Learnt(model, attractions, tuple(by_rank.tolist()), cells.moved, rounds)


def coec(cells: Cells, prior: float = PRIOR) -> tuple[Floats, Floats]:
    """Return ``(n_pairs,)`` clicks over those expected, both with a prior, and ``(n_ranks,)`` click-through rates."""
    rates = _ratio(cells.by_rank(cells.clicked), cells.by_rank(cells.shown))
    expected = cells.by_pair(cells.shown * rates[cells.rank])
    return (cells.by_pair(cells.clicked) + prior) / (expected + prior), rates


def position_based(cells: Cells) -> tuple[Floats, Floats, int]:
    """Return ``(n_pairs,)`` attractions, ``(n_ranks,)`` examinations relative to the first, and the rounds taken.

    Only the product of both is known, so the first rank's examination is called 1: an attraction is the probability of
    a click at the first rank. Each probability has a prior of one success in two trials, so that none is 0 or 1.
    """
    attraction = np.full(len(cells.pairs), 0.5)
    examined = np.full(int(cells.rank.max()) + 1, 0.5)
    shown_pair, shown_rank = cells.by_pair(cells.shown), cells.by_rank(cells.shown)
    passed = cells.shown - cells.clicked
    rounds = 0
    for rounds in range(1, ROUNDS + 1):  # noqa: B007 - returned
        a, e = attraction[cells.pair], examined[cells.rank]
        neither = 1 - a * e
        attracted = cells.clicked + passed * a * (1 - e) / neither
        looked = cells.clicked + passed * e * (1 - a) / neither
        new_attraction = (cells.by_pair(attracted) + 1) / (shown_pair + 2)
        new_examined = (cells.by_rank(looked) + 1) / (shown_rank + 2)
        change = max(np.abs(new_attraction - attraction).max(), np.abs(new_examined - examined).max())
        attraction, examined = new_attraction, new_examined
        if change < CHANGE:
            break
    return attraction * examined[0], examined / examined[0], rounds


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator > 0)
