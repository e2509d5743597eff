"""Choose by judged candidates how query and document are joined, and what the first pass adds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from osrerank.evaluation.basic import ndcg
from osrerank.scoring.card import Joining

SHARES = (0.0, 0.25, 0.5, 0.75)
WEIGHTS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.3)
FOLDS = 5

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Judged:
    """A query's candidates with the scores of each setting.

    Attributes:
        scores: raw scores ``(n,)`` by the number of layers and the bias; of the bi-encoder by ``(0, 0.0)``.
        first_pass: scores over the best one ``(n,)``, zeros where there are none.
        doc_ids: of the candidates, n.
        relevance: of all judged documents, by id.
    """

    scores: Mapping[tuple[int, float], npt.NDArray[np.float32]]
    first_pass: Floats
    doc_ids: Sequence[str]
    relevance: Mapping[str, int]

    def ndcg(self, key: tuple[int, float], share: float, weight: float) -> float:
        """Return nDCG@10 of the order by a setting's scores with the first pass's added."""
        score = (1 - share) * self.scores[key] + share * self.scores[PLAIN] + weight * self.first_pass
        order = np.argsort(-score, kind="stable")
        return ndcg([self.doc_ids[place] for place in order], self.relevance)

    def first_pass_ndcg(self) -> float:
        """Return nDCG@10 of the candidates in their order."""
        return ndcg(self.doc_ids, self.relevance)


PLAIN = (0, 0.0)


@dataclass(frozen=True, slots=True)
class Tried:
    """A setting and its nDCG@10 for each query ``(queries,)``."""

    joining: Joining
    weight: float
    values: Floats

    @property
    def mean(self) -> float:
        """Mean over the queries."""
        return float(self.values.mean())

    @property
    def complexity(self) -> tuple[int, bool]:
        """Sorts simpler settings first: fewer joined layers, then no share of the cosine."""
        return self.joining.layers, self.joining.cosine_share > 0


@dataclass(frozen=True, slots=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        chosen: the setting.
        plain: the best setting of the bi-encoder itself.
        held_out: mean nDCG@10 of the settings that the other folds choose.
        first_pass: mean nDCG@10 of the candidates as they came.
        tried: all settings, the best first.
    """

    chosen: Tried
    plain: Tried
    held_out: float
    first_pass: float
    tried: Sequence[Tried]


def choose(judged: Sequence[Judged], settings: Iterable[Joining]) -> Choice:
    """Choose the simplest setting within one standard error of the best.

    The standard error is that of the paired difference to the best. ``held_out`` is measured by cross-validation: each
    fold's queries are ordered by what the same rule chooses on the others.

    Args:
        judged: the queries, at least as many as there are folds.
        settings: those that ``judged`` has scores of; the bi-encoder itself among them.
    """
    tried = list(_tried(judged, list(settings)))
    folds = np.arange(len(judged)) % FOLDS
    held_out = [simplest(tried, folds != fold).values[folds == fold] for fold in range(FOLDS)]
    everything = np.ones(len(judged), dtype=bool)
    plain = [one for one in tried if one.joining.layers == 0]
    return Choice(
        simplest(tried, everything),
        max(plain, key=lambda one: one.mean),
        float(np.concatenate(held_out).mean()),
        float(np.mean([one.first_pass_ndcg() for one in judged])),
        sorted(tried, key=lambda one: -one.mean),
    )


def simplest(tried: Sequence[Tried], among: npt.NDArray[np.bool_]) -> Tried:
    """Return the simplest setting within one standard error of the best on some queries; of equal ones the best."""
    best = max(tried, key=lambda one: one.values[among].mean())
    near = [one for one in tried if _is_near(one, best, among)]
    return min(near, key=lambda one: (one.complexity, -one.values[among].mean()))


def _is_near(one: Tried, best: Tried, among: npt.NDArray[np.bool_]) -> bool:
    difference = (best.values - one.values)[among]
    error = difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else 0.0
    return bool(difference.mean() <= error)


def _tried(judged: Sequence[Judged], settings: Sequence[Joining]) -> Iterator[Tried]:
    has_first_pass = any(one.first_pass.any() for one in judged)
    weights = WEIGHTS if has_first_pass else (0.0,)
    for joining in settings:
        key = key_of(joining)
        shares = SHARES if joining.layers else (0.0,)
        for share, weight in product(shares, weights):
            values = np.array([one.ndcg(key, share, weight) for one in judged])
            yield Tried(replace(joining, cosine_share=share), weight, values)


def key_of(joining: Joining) -> tuple[int, float]:
    """Return the key of a setting's scores in `Judged`."""
    return (joining.layers, joining.bias) if joining.layers else PLAIN
