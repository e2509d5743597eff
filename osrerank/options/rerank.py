"""The options of a reranked search, and the checks of their values; unknown names are errors."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, get_args

from osrerank._removed import replacement_for
from osrerank.errors import ConfigError
from osrerank.options.cutoff import Cutoff
from osrerank.options.interleave import Interleave
from osrerank.options.pairs import Pairs
from osrerank.options.parse import is_share
from osrerank.options.passages import Passages
from osrerank.options.rm3 import Rm3
from osrerank.options.sentences import Sentences
from osrerank.options.traffic import Traffic
from osrerank.types import FailurePolicy, StagePipeline

NO_STAGES = "none"
AUTO_PIPELINE = "auto"
VECTORS = ("vectors", "vectors-duo")
VECTORS_MONO = ("vectors-mono", "vectors-mono-duo")
"""The pipelines in which a cross-encoder reranks the best candidates of the stage ``vectors``."""
WITH_DUO = ("mono-duo", "vectors-duo", "vectors-mono-duo")
"""The pipelines that compare the best candidates in pairs."""
PIPELINES = (AUTO_PIPELINE, "vectors", "mono", "vectors-mono", *WITH_DUO, NO_STAGES)
Boosts = Literal["keep", "ignore"]
Blend = Literal["card", "replace", "linear", "rrf"]
BLENDS: tuple[Blend, ...] = get_args(Blend)
DEPTH, AUTO_DEPTH = 100, 1_000
"""The least and the most candidates that the depth "auto" reranks."""
MAX_DEPTH = 10_000
"""OpenSearch's default result window: no first pass returns more."""
MAX_MS = 86_400_000
"""The longest duration that an option may have, in milliseconds."""
MAX_DUO_DEPTH = 1_000


class RerankOptions(TypedDict, total=False):
    """The keys of a search's ``rerank={...}``; `Rerank` says what each option means."""

    query: str | None
    pipeline: str | StagePipeline
    depth: int | Literal["auto"]
    mono_depth: int
    duo_depth: int
    pairs: str | Mapping[str, Any] | Pairs
    fields: str | Sequence[str] | None
    separator: str
    query_fields: str | Sequence[str] | None
    deadline_ms: float | Literal["auto"] | None
    on_failure: FailurePolicy
    min_score: float | None
    min_probability: float | None
    cutoff: Mapping[str, Any] | Cutoff | None
    explain: bool
    language_guard: bool
    blend: Blend
    blend_weight: float | None
    boosts: Boosts
    passages: str | Mapping[str, Any] | Passages | None
    sentences: bool | Mapping[str, Any] | Sentences | None
    rm3: bool | Mapping[str, Any] | Rm3 | None
    interleave: Mapping[str, Any] | Interleave | None
    traffic: Mapping[str, Any] | Traffic | None


@dataclass(frozen=True, slots=True)
class Rerank:
    """The options of one reranked search.

    Attributes:
        query: the text that candidates are judged against; None takes it from the search itself.
        pipeline: the stages that rerank. ``"vectors"`` orders by a bi-encoder's document vectors, ``"mono"`` by a
            cross-encoder's scores; ``"auto"`` is the one of these that fits the model. ``"vectors-mono"`` orders by the
            vectors of ``vector_model``, then the best candidates by the scores of ``model``, a cross-encoder.
            ``"vectors-duo"``, ``"mono-duo"`` and ``"vectors-mono-duo"`` then compare the best in pairs. ``"none"`` is
            the first pass only. With a bi-encoder, ``"mono"`` runs as ``"vectors"``, and the response has a warning.
            The value may also be a ``Pipeline`` of your own.
        depth: the number of candidates that the first stage reranks (k0), 1 to 10,000. ``"auto"`` reranks 100, and
            goes deeper, up to 1,000, as long as candidates have vectors (docs/vectors.md).
        mono_depth: the number of candidates that the cross-encoder of ``"vectors-mono"`` reads: the best by vectors, at
            most ``depth``.
        duo_depth: the number of candidates that are compared in pairs (k1), at most ``depth``; n candidates make
            n(n - 1) pairs, 0 and 1 make none.
        pairs: the choice of pairs, and the aggregation of a candidate's probabilities: ``"sum"``, ``"binary"``,
            ``"min"``, ``"max"``, ``"sample"``, a dict of options or ``Pairs``.
        fields: the fields whose text the model reads, joined in this order; dotted paths are allowed. None reads those
            of ``query_fields``; else those that the caller's own query searches, or the text fields of the index's
            mapping, at most five. Multi-fields, aliases, patterns, objects and boosts are looked up in the mapping.
        separator: the text between the fields, and between the values of a list.
        query_fields: the fields in which a query that is a text is searched for; ``name^boost`` is allowed. None
            searches the fields that the mapping shows to be text.
        deadline_ms: the time limit of the whole call, in milliseconds; None for no limit. It never cuts the first pass
            short. If the last stage is ``vectors``, ``"auto"`` is 1,000 in ``client.search``, from the time when the
            model is loaded, and as much for each search in ``client.msearch``; otherwise it is no limit.
        on_failure: the behaviour if reranking fails: ``"first_pass"`` returns the best order so far and marks the
            response; ``"raise"`` raises.
        min_score: the least probability of a hit that is returned, in [0, 1], by the model's card. Hits below the
            depth, and those that could not be scored, are left out; those that a deadline left unscored stay. Totals
            stay the first pass's. A response that was not reranked is not filtered.
        min_probability: the least calibrated probability of a hit that is returned, as ``osrerank calibrate`` fitted
            it. Without a calibration for the index, the model and the options, no hit is removed, and
            ``response["rerank"]["cuts"]`` says why; ``on_failure="raise"`` raises.
        cutoff: the least share of the returned hits that must be relevant, by the calibration of ``min_probability``.
            ``{"precision": 0.9}`` finds the lowest probability at or above which nine in ten hits are relevant, and
            removes the hits below it.
        explain: whether to add to each hit an explanation of its rank, and to each stage its pairwise probabilities.
        language_guard: whether to keep the first pass's order if the model does not read the script of the query or
            the language of most documents, according to its card.
        blend: the way to combine the model with the first pass: ``"card"`` does what the model's card recommends;
            ``"replace"`` orders by the model only; ``"linear"`` and ``"rrf"`` combine the scores of both
            (``osrerank.stages.interpolate``). In ``"vectors-mono"``, the model is that of the vectors.
        blend_weight: the amount that the first pass's best score adds to the model's logit in a linear blend; None is
            the card's weight. Not together with ``sentences``.
        boosts: whether boosts in the caller's query count, such as a ``function_score`` for recency. ``"keep"`` hands
            out the candidates' text scores again in the model's order, so that the model's best candidate gets the
            highest, and combines each with that hit's boosts as the query says (docs/concepts.md). ``"ignore"`` orders
            by the stages alone.
        passages: the scoring of long documents by their passages. ``"auto"`` scores documents that are longer than the
            model's window by their best passage if the model's card recommends it, as a bi-encoder's does; if not, it
            is ``"off"``, which scores as much of their beginning as the model reads. ``"maxp"``, ``"firstp"``,
            ``"sump"``, ``"kmaxavgp"``, a dict of options or ``Passages`` scores the passages of every document.
        sentences: whether, and how, a document's best sentences are combined with the first pass, as Birch does: True,
            a dict of options or ``Sentences``. Not together with ``passages`` or ``blend``, and not in
            ``"vectors-mono"``.
        rm3: whether, and how, the first pass's query is expanded by feedback, if the query is a text: True, a dict of
            options or ``Rm3``.
        interleave: ``{"with": {...}, "key": session_id}`` interleaves this ranking with that of the options in
            ``with``, for the reader ``key`` (docs/decision.md). Not together with ``min_score``, ``min_probability``
            and ``cutoff``.
        traffic: ``{"share": 0.1, "key": session_id}`` reranks a tenth of the searches, chosen by a hash of the key;
            ``{"shadow": True}`` answers all with the first pass, and records what reranking would have changed
            (docs/decision.md). Options that a search leaves out are those of the settings file. None reranks all
            searches.
    """

    query: str | None = None
    pipeline: str | StagePipeline = AUTO_PIPELINE
    depth: int | Literal["auto"] = DEPTH
    mono_depth: int = 20
    duo_depth: int = 20
    pairs: Pairs = field(default_factory=Pairs)
    fields: tuple[str, ...] | None = None
    separator: str = " "
    query_fields: tuple[str, ...] | None = None
    deadline_ms: float | Literal["auto"] | None = "auto"
    on_failure: FailurePolicy = "first_pass"
    min_score: float | None = None
    min_probability: float | None = None
    cutoff: Cutoff | None = None
    explain: bool = False
    language_guard: bool = True
    blend: Blend = "card"
    blend_weight: float | None = None
    boosts: Boosts = "keep"
    passages: Passages | Literal["auto"] | None = "auto"
    sentences: Sentences | None = None
    rm3: Rm3 | None = None
    interleave: Interleave | None = None
    traffic: Traffic | None = None

    @property
    def rankings(self) -> "tuple[Rerank, ...]":
        """The options of each ranking that the search needs: only these or, if it interleaves, those of both teams."""
        if self.interleave is None:
            return (self,)
        team_a = replace(self, interleave=None)
        return team_a, replace(team_a, **dict(self.interleave.others))

    @property
    def is_first_pass(self) -> bool:
        """Whether no ranking has a stage, so that the search is answered with its first pass."""
        return all(options.pipeline == NO_STAGES for options in self.rankings)

    @property
    def in_shadow(self) -> bool:
        """Whether the search returns its first pass and, if it is in the share, runs again."""
        return self.traffic is not None and self.traffic.shadow

    @property
    def compares_pairs(self) -> bool:
        """Whether the best candidates are compared in pairs."""
        return self.pipeline in WITH_DUO

    @property
    def named_deadline_ms(self) -> float | None:
        """The deadline of the whole call that the options give as a number; None for ``"auto"`` and for no limit."""
        return None if self.deadline_ms == "auto" else self.deadline_ms

    @property
    def may_end_with_vectors(self) -> bool:
        """Whether the last stage that uses a model is ``vectors``, provided that the model is an encoder."""
        return self.pipeline in (AUTO_PIPELINE, "vectors", "mono", NO_STAGES) and self.sentences is None

    @property
    def min_depth(self) -> int:
        """The least number of candidates that the first stage reranks."""
        return DEPTH if self.depth == "auto" else self.depth

    @property
    def max_depth(self) -> int:
        """The number of candidates that the first pass must return."""
        return AUTO_DEPTH if self.depth == "auto" else self.depth

    def __post_init__(self) -> None:
        for name, (kind, default, parse) in GROUPS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) and value is not default and value != default:
                object.__setattr__(self, name, parse(value))
        for name in ("fields", "query_fields"):
            value = getattr(self, name)
            if isinstance(value, str | list):
                object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name, (fits, expected) in _RULES.items():
            value = getattr(self, name)
            if not fits(value):
                fix = replacement_for(f"rerank.{name}.{value}") or f"it must be {expected}"
                message = f"rerank option {name} is {value!r}; {fix}"
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if self.sentences is not None:
            self._check_sentences()
        if self.interleave is not None:
            self._check_interleave(self.interleave)

    def _check_sentences(self) -> None:
        """Reject options that cannot be combined with ``sentences``."""
        has_blend = self.blend not in ("card", "replace") or self.blend_weight is not None
        if isinstance(self.passages, Passages) or has_blend:
            message = "rerank option sentences replaces passages, blend and blend_weight: leave these out"
            raise ConfigError(message, setting="rerank.sentences", source="argument")
        if self.pipeline in VECTORS_MONO:
            message = f"rerank option sentences does not go with the pipeline {self.pipeline}: leave it out"
            raise ConfigError(message, setting="rerank.sentences", source="argument")

    def _check_interleave(self, interleave: Interleave) -> None:
        """Reject options that would treat the teams differently, and parse team B's options."""
        for name in ("min_score", "min_probability", "cutoff"):
            if getattr(self, name) is not None:
                reason = "one team's scores would remove the other team's hits"
                message = f"rerank option {name} does not go with interleave, leave it out: {reason}"
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if self.in_shadow:
            reason = "nobody would see the interleaved page"
            message = f"rerank option traffic.shadow does not go with interleave, leave one out: {reason}"
            raise ConfigError(message, setting="rerank.traffic.shadow", source="argument")
        team_b = self.rankings[1]
        parsed = tuple((name, getattr(team_b, name)) for name in dict(interleave.others))
        object.__setattr__(self, "interleave", replace(interleave, others=parsed))

    @classmethod
    def of(cls, value: "bool | RerankOptions | Mapping[str, Any] | Rerank", defaults: "Rerank") -> "Rerank | None":
        """Read the ``rerank`` argument of a search; return None for no reranking.

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
        names = [option.name for option in fields(cls)]
        for name in value:
            if name not in names:
                fix = replacement_for(f"rerank.{name}") or f"the options are {', '.join(names)}"
                message = f"rerank has no option {name!r}; {fix}"
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if "traffic" in value:
            value = {**value, "traffic": Traffic.of(value["traffic"], defaults.traffic)}
        return replace(defaults, **value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(name, str) and name for name in value)


# option -> its class, its default, and the function that reads any other value
GROUPS: dict[str, tuple[type, object, Callable[[Any], object]]] = {
    "pairs": (Pairs, Pairs(), Pairs.of),
    "passages": (Passages, "auto", Passages.of),
    "sentences": (Sentences, None, Sentences.of),
    "rm3": (Rm3, None, Rm3.of),
    "cutoff": (Cutoff, None, Cutoff.of),
    "interleave": (Interleave, None, Interleave.of),
    "traffic": (Traffic, None, Traffic.of),
}
# option -> the function that checks a value, and what the value must be, in words
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "query": (lambda value: value is None or isinstance(value, str), "a text or None"),
    "pipeline": (
        lambda value: isinstance(value, StagePipeline) or value in PIPELINES,
        f"{' or '.join(map(repr, PIPELINES))} or a Pipeline",
    ),
    "depth": (
        lambda value: value == "auto" or (type(value) is int and 0 < value <= MAX_DEPTH),
        f'a count from 1 to {MAX_DEPTH}, or "auto"',
    ),
    "mono_depth": (
        lambda value: type(value) is int and 0 < value <= MAX_DEPTH,
        f"a count from 1 to {MAX_DEPTH}",
    ),
    "duo_depth": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DUO_DEPTH,
        f"a count from 0 to {MAX_DUO_DEPTH}: n candidates are n(n - 1) pairs",
    ),
    "fields": (_are_names, "one or more field names, or None"),
    "separator": (lambda value: isinstance(value, str), "a text"),
    "query_fields": (_are_names, "one or more field names, or None"),
    "deadline_ms": (
        lambda value: value in ("auto", None) or (_is_number(value) and 0 < value <= MAX_MS),
        f'a number of milliseconds above 0, at most {MAX_MS:,} (a day), None for no limit, or "auto"',
    ),
    "on_failure": (lambda value: value in ("first_pass", "raise"), '"first_pass" or "raise"'),
    "min_score": (lambda value: value is None or is_share(value), "a probability in [0, 1] or None"),
    "min_probability": (lambda value: value is None or is_share(value), "a probability in [0, 1] or None"),
    "explain": (lambda value: isinstance(value, bool), "True or False"),
    "language_guard": (lambda value: isinstance(value, bool), "True or False"),
    "blend": (lambda value: value in BLENDS, " or ".join(f'"{name}"' for name in BLENDS)),
    "boosts": (lambda value: value in get_args(Boosts), '"keep" or "ignore"'),
    "blend_weight": (
        lambda value: value is None or (_is_number(value) and 0 <= value < math.inf),
        "a number from 0 on or None",
    ),
}
