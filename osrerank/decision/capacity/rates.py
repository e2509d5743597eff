"""How fast one worker scores: measured, given, or read from a file that an earlier measurement wrote."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean, pstdev
from typing import Any, Self

from osrerank.errors import FormatError
from osrerank.formats.files import write_atomically

VERSION = 1
QUANTILES = 50
"""Of the distribution that stands for a given variation."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How long one worker takes for a chunk.

    Attributes:
        pair_s: seconds for each pair, alone.
        fixed_s: seconds of a chunk, however small.
        spread: times of chunks, as multiples of what ``fixed_s`` and ``pair_s`` say.
        together: what a chunk occupies the worker for where others are scored too, as a share of its time alone: below
            1 where waiting and computing overlap or batches are shared.
        tasks: chunks that are scored at a time.
    """

    pair_s: float
    fixed_s: float = 0.0
    spread: tuple[float, ...] = (1.0,)
    together: float = 1.0
    tasks: int = 4

    def alone_s(self, pairs: float) -> float:
        """Return the seconds of a chunk that nothing else is beside, without the spread."""
        return self.fixed_s + self.pair_s * pairs

    def busy_s(self, pairs: float) -> float:
        """Return the seconds of a worker that a chunk takes on average, among others."""
        return self.alone_s(pairs) * fmean(self.spread) * self.together

    @property
    def variation(self) -> float:
        """The coefficient of variation of a chunk's time."""
        return pstdev(self.spread) / fmean(self.spread)

    @classmethod
    def given(cls, pairs_per_s: float, *, variation: float, tasks: int) -> Self:
        """Return the rate of a worker by its pairs a second; chunks' times have a log-normal distribution."""
        return cls(1 / pairs_per_s, spread=log_normal(variation), tasks=tasks)


def log_normal(variation: float) -> tuple[float, ...]:
    """Return quantiles of the log-normal distribution of mean 1 with a coefficient of variation."""
    sigma = math.sqrt(math.log1p(variation**2))
    normal = NormalDist(0, sigma) if sigma else None
    values = [math.exp(normal.inv_cdf((place + 0.5) / QUANTILES)) if normal else 1.0 for place in range(QUANTILES)]
    mean = fmean(values)
    return tuple(value / mean for value in values)


@dataclass(frozen=True, slots=True)
class StatesRate:
    """What documents' states cost and bring, for a model that has them.

    Attributes:
        known: scoring documents with states in the searching process; a pair is a document.
        encode_s: seconds to compute a document's states.
        record_bytes: that a document takes in the file, keys and all.
        dimension: of the document's vector.
    """

    known: Rate
    encode_s: float
    record_bytes: float
    dimension: int


@dataclass(frozen=True, slots=True)
class Rates:
    """A measurement, or what was given in its place.

    Attributes:
        model: whose rates they are.
        threads: CPU threads of a worker; 0 for a GPU.
        document_words, query_words: mean length of the texts.
        document_characters: likewise.
        whole: scoring whole pairs, by one worker.
        states: None where the model has none.
        where: the machine and what was measured on it, in words; empty where nothing was.
    """

    model: str
    threads: int
    document_words: float
    query_words: float
    document_characters: float
    whole: Rate
    states: StatesRate | None = None
    where: Mapping[str, Any] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write a JSON file that `read_rates` reads."""
        content = json.dumps({"version": VERSION, **asdict(self)}, indent=1)
        write_atomically(file, [content, "\n"])


def read_rates(file: Path) -> Rates:
    """Read what `Rates.write` wrote.

    Raises:
        FormatError: the file is none of that form, or a value in it is of no use.
    """
    try:
        content = json.loads(file.read_text("utf-8"))
        return _rates(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        reason = f"{file} has no rates of osrerank plan --save-rates: {type(error).__name__}: {error}; measure again"
        raise FormatError(reason, file=str(file)) from error


def _rates(content: dict[str, Any]) -> Rates:
    """Return what JSON's values say.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: they are of another form.
    """
    if content.pop("version") != VERSION:
        raise ValueError("another version")
    whole, states = _rate(content.pop("whole")), content.pop("states")
    known = None if states is None else StatesRate(**{**states, "known": _rate(states["known"])})
    rates = Rates(**content, whole=whole, states=known)
    if not (rates.document_words > 0 and rates.document_characters > 0 and rates.threads >= 0):
        raise ValueError("a length is not positive")
    return rates


def _rate(content: Mapping[str, Any]) -> Rate:
    """Return a rate of JSON's values.

    Raises:
        ValueError: it takes no time, or less.
    """
    rate = Rate(**{**content, "spread": tuple(map(float, content["spread"]))})
    if not (rate.pair_s > 0 and rate.fixed_s >= 0 and rate.together > 0 and rate.tasks >= 1 and min(rate.spread) > 0):
        raise ValueError("a time is not positive")
    return rate
