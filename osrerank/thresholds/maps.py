"""Functions from a score to a probability of relevance ("maps"): a logistic function (Platt) or an isotonic one.

Platt: Probabilistic outputs for support vector machines, 1999. Zadrozny, Elkan: Transforming classifier scores into
accurate multiclass probability estimates, KDD 2002 (isotonic regression).
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.scoring.card import logistic

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Platt:
    """The logistic function of ``scale * score + offset``, with a scale above 0."""

    scale: float
    offset: float

    name = "platt"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.offset) and 0 < self.scale < math.inf):
            raise ValueError(f"scale {self.scale} and offset {self.offset} define no rising logistic function")

    def apply(self, scores: Floats) -> Floats:
        """Return the probabilities of scores ``(n,)``."""
        return logistic(self.scale * scores + self.offset)


@dataclass(frozen=True, slots=True)
class Isotonic:
    """A piecewise linear function through given points, which never falls. It is constant outside the points.

    Attributes:
        scores: the scores of the points, in rising order, such as ``(-3.0, 0.0, 2.5)``.
        probabilities: the probabilities of the points, in [0, 1] and never falling, such as ``(0.02, 0.4, 0.4)``.
    """

    scores: tuple[float, ...]
    probabilities: tuple[float, ...]

    name = "isotonic"

    def __post_init__(self) -> None:
        for name in ("scores", "probabilities"):
            object.__setattr__(self, name, tuple(float(value) for value in getattr(self, name)))
        scores, probabilities = np.array(self.scores), np.array(self.probabilities)
        is_complete = len(scores) == len(probabilities) > 0 and bool(np.isfinite(scores).all())
        if not is_complete or (np.diff(scores) <= 0).any() or (np.diff(probabilities) < 0).any():
            raise ValueError("in an isotonic map, scores must rise and probabilities must not fall")
        if probabilities[0] < 0 or probabilities[-1] > 1:
            raise ValueError("the points of an isotonic map must have probabilities in [0, 1]")

    def apply(self, scores: Floats) -> Floats:
        """Return the probabilities of scores ``(n,)``."""
        return np.interp(scores, self.scores, self.probabilities)


ProbabilityMap = Platt | Isotonic
KINDS: dict[str, type[Platt] | type[Isotonic]] = {kind.name: kind for kind in (Platt, Isotonic)}
"""The classes of maps, by their names in JSON."""


def map_as_json(probability_map: ProbabilityMap) -> dict[str, Any]:
    """Return a map as JSON values: ``{"kind": "platt", "scale": 1.3, "offset": -0.2}``."""
    return {"kind": probability_map.name, **asdict(probability_map)}


def map_from_json(content: Mapping[str, Any]) -> ProbabilityMap:
    """Return the map from the JSON values of `map_as_json`.

    Raises:
        KeyError, TypeError, ValueError: the content is not a map.
    """
    fields = {name: value for name, value in content.items() if name != "kind"}
    return KINDS[content["kind"]](**fields)
