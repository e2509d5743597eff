"""Stages in a row, the options of a reranked search, and what happens when a stage fails.

Nogueira, Yang, Cho, Lin: Multi-Stage Document Ranking with BERT, 2019, arXiv:1910.14424, section 3: H0 retrieves,
every later stage reorders the top of what came before and leaves the rest below.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from osrerank.errors import ConfigError, DeadlineExceeded, ScoringError, WorkerError
from osrerank.types import NEVER, Deadline, Ranking, Stage, StageReport

logger = logging.getLogger(__name__)

FailurePolicy = Literal["first_pass", "raise"]
PIPELINES = ("mono",)
MAX_DEPTH = 10_000
"""OpenSearch's default result window: no first pass brings more."""


@dataclass(frozen=True, slots=True)
class Rerank:
    """The options of one reranked search.

    Attributes:
        query: the text that candidates are judged against; taken from the search itself when None.
        pipeline: ``"mono"``, or a ``Pipeline`` of your own.
        depth: candidates reranked by the first stage (k0).
        fields: fields whose text the model reads, dotted paths allowed, joined in this order.
        separator: what joins the fields' texts, and the values of a list.
        query_fields: fields that a query given as text is matched against, ``name^boost`` allowed.
        deadline_ms: time for the whole call, in milliseconds; None for no limit. It never cuts the first pass short.
        on_failure: ``"first_pass"`` answers with the best order so far, marked; ``"raise"`` raises.
        cache: whether the score cache is used, where there is one.
        min_score: least probability, in [0, 1], that a hit must have to be returned; totals stay the first pass's.
        explain: whether each hit says how it got its place.
    """

    query: str | None = None
    pipeline: "str | Pipeline" = "mono"
    depth: int = 100
    fields: tuple[str, ...] = ("title", "text")
    separator: str = " "
    query_fields: tuple[str, ...] = ("title", "text")
    deadline_ms: float | None = None
    on_failure: FailurePolicy = "first_pass"
    cache: bool = True
    min_score: float | None = None
    explain: bool = False

    def __post_init__(self) -> None:
        for name in ("fields", "query_fields"):
            value = getattr(self, name)
            if isinstance(value, str):
                value = (value,)
            elif isinstance(value, list):
                value = tuple(value)
            object.__setattr__(self, name, value)
            _check(
                isinstance(value, tuple) and len(value) > 0 and all(isinstance(item, str) and item for item in value),
                name,
                value,
                "one or more field names",
            )
        _check(isinstance(self.pipeline, Pipeline) or self.pipeline in PIPELINES, "pipeline", self.pipeline, _PIPELINE)
        _check(_is_int(self.depth) and 0 < self.depth <= MAX_DEPTH, "depth", self.depth, f"1 to {MAX_DEPTH}")
        _check(self.query is None or isinstance(self.query, str), "query", self.query, "a text")
        _check(isinstance(self.separator, str), "separator", self.separator, "a text")
        _check(
            self.deadline_ms is None or (_is_number(self.deadline_ms) and self.deadline_ms > 0),
            "deadline_ms",
            self.deadline_ms,
            "a positive number of milliseconds or None",
        )
        _check(self.on_failure in ("first_pass", "raise"), "on_failure", self.on_failure, '"first_pass" or "raise"')
        _check(
            self.min_score is None or (_is_number(self.min_score) and 0 <= self.min_score <= 1),
            "min_score",
            self.min_score,
            "a probability in [0, 1] or None",
        )
        for name in ("cache", "explain"):
            _check(isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False")

    @classmethod
    def of(cls, value: "bool | Mapping[str, Any] | Rerank", defaults: "Rerank") -> "Rerank | None":
        """Read the ``rerank`` argument of a search; None means that no reranking was asked for.

        Raises:
            ConfigError: the value is no bool, mapping or ``Rerank``, or a key or value in it cannot be used.
        """
        if isinstance(value, Rerank):
            return value
        if isinstance(value, bool):
            return defaults if value else None
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"rerank is {value!r}; it must be True, False, a dict of options or a Rerank",
                setting="rerank",
                source="argument",
            )
        known = [field.name for field in fields(cls)]
        for name in value:
            if name not in known:
                raise ConfigError(
                    f"rerank has no option {name!r}; known are {', '.join(known)}",
                    setting=f"rerank.{name}",
                    source="argument",
                )
        return replace(defaults, **value)


_PIPELINE = f"{' or '.join(map(repr, PIPELINES))} or a Pipeline"


def _check(condition: bool, name: str, value: object, expected: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise ConfigError(
            f"rerank option {name} is {value!r}; it must be {expected}", setting=f"rerank.{name}", source="argument"
        )


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages applied one after another; itself a function from a ranking to a ranking.

    Attributes:
        stages: each reorders the top of what the one before it made.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(self.stages))
        if not self.stages:
            raise ValueError("a pipeline needs at least one stage")
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError(f"two stages of a pipeline have the same name: {', '.join(names)}")

    @property
    def depth(self) -> int:
        """How many candidates the deepest stage looks at."""
        return max(stage.depth for stage in self.stages)

    def rerank(
        self, ranking: Ranking, *, deadline: Deadline = NEVER, on_failure: FailurePolicy = "first_pass"
    ) -> Ranking:
        """Apply every stage; after one that fails, none.

        Args:
            ranking: the first pass.
            deadline: when it has passed, no further stage begins.
            on_failure: ``"first_pass"`` keeps the best order so far and reports the failure, ``"raise"`` raises it.

        Raises:
            ScoringError: a stage failed, or no time was left for it, and ``on_failure`` is ``"raise"``.
            WorkerError: likewise, from workers.
        """
        for stage in self.stages:
            started = time.perf_counter()
            try:
                ranking = _apply(stage, ranking, deadline)
            except (ScoringError, WorkerError) as error:
                if on_failure == "raise":
                    raise
                logger.warning("stage %s was skipped: %s", stage.name, error)
                took_ms = (time.perf_counter() - started) * 1000
                return ranking.with_report(
                    StageReport(name=stage.name, applied=False, reason=str(error), took_ms=took_ms)
                )
        return ranking


def _apply(stage: Stage, ranking: Ranking, deadline: Deadline) -> Ranking:
    if deadline.passed:
        raise DeadlineExceeded(f"the deadline passed before stage {stage.name} began", stage=stage.name)
    return stage.rerank(ranking, deadline=deadline)


def applied(reports: tuple[StageReport, ...]) -> bool | str:
    """Return whether a ranking was reranked: True, False, or "partial" when a stage was skipped or cut short."""
    if all(report.applied is True for report in reports):
        return bool(reports)
    return "partial" if any(report.applied for report in reports) else False
