"""`Rerank`: the options of a reranked search, which it parses and validates."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypedDict, get_args

from osrerank._removed import find_replacement
from osrerank.errors import ConfigError
from osrerank.options.cutoff import Cutoff
from osrerank.options.interleave import Interleave
from osrerank.options.pairs import Pairs
from osrerank.options.parse import is_fraction
from osrerank.options.passages import Passages
from osrerank.options.rm3 import Rm3
from osrerank.options.sentences import Sentences
from osrerank.options.traffic import Traffic
from osrerank.types import FailurePolicy, StagePipeline

NO_STAGES = "none"
"""The pipeline without stages, which returns the first pass's order."""
AUTO_PIPELINE = "auto"
"""The pipeline ``vectors`` for a bi-encoder, or ``mono`` for a cross-encoder."""
VECTORS = ("vectors", "vectors-duo")
"""The pipelines that order candidates by document vectors and use no cross-encoder."""
VECTORS_MONO = ("vectors-mono", "vectors-mono-duo")
"""The pipelines that order candidates by document vectors, and then reorder the best ones with a cross-encoder."""
WITH_DUO = ("mono-duo", "vectors-duo", "vectors-mono-duo")
"""The pipelines whose last stage (duo) compares the best candidates in pairs."""
PIPELINES = (AUTO_PIPELINE, "vectors", "mono", "vectors-mono", *WITH_DUO, NO_STAGES)
Boosts = Literal["keep", "ignore"]
Blend = Literal["card", "replace", "linear", "rrf"]
BLENDS: tuple[Blend, ...] = get_args(Blend)
DEFAULT_DEPTH = 100
"""The default of ``depth``. The depth ``"auto"`` reranks at least as many candidates."""
MAX_AUTO_DEPTH = 1_000
"""The maximum number of candidates that the depth ``"auto"`` reranks."""
MAX_DEPTH = 10_000
"""The maximum depth. A first pass cannot return more hits (OpenSearch's default ``max_result_window``)."""
MAX_MS = 86_400_000
"""The maximum value of options in milliseconds: a day."""
MAX_DUO_DEPTH = 1_000
"""The maximum of ``duo_depth``. 1,000 candidates make about a million pairs."""


class RerankOptions(TypedDict, total=False):
    """The keys of a search's ``rerank={...}``; `Rerank` describes them."""

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

    The caller's own search, the *first pass*, finds candidates. *Stages* then rerank the best of them with models. A
    model's *card* is a file in its folder. It calibrates the model's scores as probabilities, and recommends options.

    Attributes:
        query: the query that candidates are scored against. If None, it is the query of the search.
        pipeline: the stages that rerank. You can also pass your own ``Pipeline``.
            ``"auto"`` is ``"vectors"`` if the model is a bi-encoder, and ``"mono"`` if it is a cross-encoder.
            ``"vectors"`` orders candidates by the document vectors of a bi-encoder.
            ``"mono"`` orders candidates by the scores of a cross-encoder. With a bi-encoder, it runs as ``"vectors"``,
            and the response has a warning.
            ``"vectors-mono"`` orders by the vectors of ``vector_model``, then reorders the best candidates by the
            scores of ``model``, a cross-encoder.
            ``"vectors-duo"``, ``"mono-duo"`` and ``"vectors-mono-duo"`` have a last stage, ``duo``, which compares the
            best candidates in pairs.
            ``"none"`` keeps the first pass's order.
        depth: the number of candidates that the first stage reranks, 1 to 10,000. ``"auto"`` reranks the first 100, and
            those that follow, up to 1,000, as long as they have stored vectors (docs/vectors.md).
        mono_depth: the number of candidates that the cross-encoder of ``"vectors-mono"`` scores, at most ``depth``. It
            scores the candidates with the best vector scores.
        duo_depth: the number of candidates that are compared in pairs, at most ``depth``. n candidates make
            n(n - 1) pairs. 0 and 1 turn the comparison off.
        pairs: the pairs that are compared, and the aggregation of a candidate's pairwise probabilities: ``"sum"``,
            ``"binary"``, ``"min"``, ``"max"``, ``"sample"``, a dict of options or ``Pairs``.
        fields: the fields whose text the model scores, joined in this order. Dotted paths are allowed. If None, they
            are the ``query_fields``, or else the fields that the caller's own query searches, or else up to five text
            fields of the index's mapping. Names of multi-fields, aliases and objects, patterns such as ``body*``, and
            ``name^boost`` are also allowed.
        separator: the text between fields, and between the values of a list.
        query_fields: the fields to search with a query string. ``name^boost`` is allowed. If None, they are up to five
            text fields of the index's mapping.
        deadline_ms: the time limit of the whole call, in milliseconds. The first pass is never interrupted.
            None means no limit.
            ``"auto"`` limits a search whose last stage is ``vectors`` to 1,000 ms, from when its model is loaded. A
            multi-search gets 1,000 ms for each of its searches. Other searches have no limit.
        on_failure: what happens if reranking fails.
            ``"first_pass"`` returns the best order so far, and the response states the reason.
            ``"raise"`` raises the error.
        min_score: the minimum probability of a returned hit, in [0, 1], as the model's card calibrates it. Hits that
            have no probability, because they rank below ``depth`` or could not be scored, are left out. Hits that the
            deadline left unscored stay. The response's total remains the number of hits in the first pass. If the
            search was not reranked, no hit is left out.
        min_probability: the minimum probability of a returned hit, in [0, 1], by the calibration that
            ``osrerank calibrate`` fitted to the index, the model and the options. Without this calibration, no hit is
            left out, and ``response["rerank"]["cuts"]`` states the reason. With ``on_failure="raise"``, this is an
            error.
        cutoff: the minimum fraction of the returned hits that must be relevant, by the calibration of
            ``min_probability``. ``{"precision": 0.9}`` finds the lowest probability at or above which nine in ten hits
            are relevant, and leaves out the hits below it.
        explain: whether the response explains the rank of each hit, and lists each stage's pairwise probabilities.
        language_guard: whether to keep the first pass's order if the model's card does not list the script of the query
            or the language of most documents.
        blend: the way to combine the scores of the model and the first pass: ``"card"`` follows the model's card.
            ``"replace"`` orders by the model alone.
            ``"linear"`` adds a multiple of the first-pass score (``blend_weight``).
            ``"rrf"`` fuses the ranks (``osrerank.stages.interpolate``).
            In ``"vectors-mono"``, the model is the bi-encoder.
        blend_weight: the weight of the first pass in a linear blend: the candidate with the highest first-pass score
            gets this number added to its logit. A candidate with half this score gets half the number. If None, the
            number in the model's card is used. The option cannot be combined with ``sentences``.
        boosts: whether the caller's boosts, such as a ``function_score`` for recency, are applied after reranking.
            ``"keep"`` applies them as the query specifies (docs/concepts.md). So that they act on scores of the usual
            size, the model's best candidate first gets the highest text score of the first pass, the second best one
            the second highest, and so on.
            ``"ignore"`` orders by the stages alone.
        passages: whether and how long documents are scored by passages.
            ``"off"`` scores the beginning of a document, as much as fits into the model's window.
            ``"maxp"``, ``"firstp"``, ``"sump"``, ``"kmaxavgp"``, a dict of options or ``Passages`` scores every
            document by its passages.
            ``"auto"`` gives a document longer than the window the score of its best passage, if the model's card
            recommends passages, as the card of a bi-encoder does. Otherwise, ``"auto"`` is ``"off"``.
        sentences: whether and how the scores of a document's best sentences are added to its first-pass score, as in
            Birch: True, a dict of options or ``Sentences``. It cannot be combined with ``passages``, ``blend`` or
            ``"vectors-mono"``.
        rm3: whether and how a query string is expanded by relevance feedback: True, a dict of options or ``Rm3``.
        interleave: a second ranking to mix with this one, to find out which of them users prefer (docs/decision.md).
            In ``{"with": {"pipeline": "vectors"}, "key": session_id}``, ``with`` has the options in which the second
            ranking differs, and ``key`` is the id of the user or session. ``interleave`` cannot be combined with
            ``min_score``, ``min_probability`` or ``cutoff``.
        traffic: which searches are reranked. If None, all are. Keys of the dict that a search leaves out come from the
            settings file.
            ``{"share": 0.1, "key": session_id}`` reranks a tenth of the searches, chosen by a hash of the key.
            ``{"shadow": True}`` returns the first pass for all searches, and records how reranking would have changed
            it (docs/decision.md).
    """

    query: str | None = None
    pipeline: str | StagePipeline = AUTO_PIPELINE
    depth: int | Literal["auto"] = DEFAULT_DEPTH
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
        """The options of each ranking to compute: of two rankings in an interleaved search, or else of one."""
        if self.interleave is None:
            return (self,)
        first = replace(self, interleave=None)
        return first, replace(first, **dict(self.interleave.others))

    @property
    def is_first_pass(self) -> bool:
        """Whether the search returns its first pass, because no ranking has a stage."""
        return all(options.pipeline == NO_STAGES for options in self.rankings)

    @property
    def in_shadow(self) -> bool:
        """Whether the search returns its first pass, and might run again to record how reranking changes it."""
        return self.traffic is not None and self.traffic.shadow

    @property
    def compares_pairs(self) -> bool:
        """Whether the best candidates are compared in pairs."""
        return self.pipeline in WITH_DUO

    @property
    def explicit_deadline_ms(self) -> float | None:
        """The option ``deadline_ms`` if it is a number. None for ``"auto"`` and for no limit."""
        return None if self.deadline_ms == "auto" else self.deadline_ms

    @property
    def may_end_with_vectors(self) -> bool:
        """Whether the search ranks by vectors, without a later stage, if its model turns out to be a bi-encoder.

        With a bi-encoder, the pipelines ``auto`` and ``mono`` run as ``vectors``.
        """
        return self.pipeline in (AUTO_PIPELINE, "vectors", "mono") and self.sentences is None

    @property
    def min_depth(self) -> int:
        """The minimum number of candidates that the first stage reranks."""
        return DEFAULT_DEPTH if self.depth == "auto" else self.depth

    @property
    def max_depth(self) -> int:
        """The maximum number of candidates that the first stage reranks. The first pass must return as many."""
        return MAX_AUTO_DEPTH if self.depth == "auto" else self.depth

    def __post_init__(self) -> None:
        # `GROUPS` and `_RULES` are at the end of the module. `object.__setattr__` is needed in a frozen dataclass.
        for name, (option_class, default, parse) in GROUPS.items():
            value = getattr(self, name)
            is_parsed = isinstance(value, option_class) or value == default
            if not is_parsed:
                object.__setattr__(self, name, parse(value))
        for name in ("fields", "query_fields"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, (value,))
            elif isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        for name, (is_valid, expected) in _RULES.items():
            value = getattr(self, name)
            if not is_valid(value):
                fix = find_replacement(f"rerank.{name}.{value}") or f"it must be {expected}"
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
            message = (
                "rerank option sentences cannot be combined with passages, blend and blend_weight; leave these out"
            )
            raise ConfigError(message, setting="rerank.sentences", source="argument")
        if self.pipeline in VECTORS_MONO:
            message = (
                f"rerank option sentences cannot be combined with the pipeline {self.pipeline}; leave out one of "
                "the two"
            )
            raise ConfigError(message, setting="rerank.sentences", source="argument")

    def _check_interleave(self, interleave: Interleave) -> None:
        """Reject options that cannot be combined with ``interleave``, and parse the options of the second ranking."""
        for name in ("min_score", "min_probability", "cutoff"):
            if getattr(self, name) is not None:
                message = (
                    f"rerank option {name} cannot be combined with interleave, because one ranking's scores would "
                    f"remove the other ranking's hits; leave out {name}"
                )
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if self.in_shadow:
            message = (
                "rerank option traffic.shadow cannot be combined with interleave, because nobody would see the "
                "interleaved page; leave out one of the two"
            )
            raise ConfigError(message, setting="rerank.traffic.shadow", source="argument")
        _first, second = self.rankings  # creating the second `Rerank` parses and validates its options
        # a tuple rather than a dict, so that these options are hashable
        parsed_options = tuple((name, getattr(second, name)) for name in dict(interleave.others))
        object.__setattr__(self, "interleave", replace(interleave, others=parsed_options))

    @classmethod
    def of(cls, value: "bool | RerankOptions | Mapping[str, Any] | Rerank", defaults: "Rerank") -> "Rerank | None":
        """Parse the ``rerank`` argument of a search. Returns None if the argument turns reranking off.

        Args:
            value: the argument.
            defaults: the options that apply if the argument is True or leaves options out.

        Raises:
            ConfigError: the argument has another type, an unknown key, or an invalid value.
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
                fix = find_replacement(f"rerank.{name}") or f"the options are {', '.join(names)}"
                message = f"rerank has no option {name!r}; {fix}"
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if "traffic" in value:
            value = {**value, "traffic": Traffic.of(value["traffic"], defaults.traffic)}
        return replace(defaults, **value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object, lowest: int, highest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest


def _are_names(value: object) -> bool:
    if value is None:
        return True
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(name, str) and name for name in value)


GROUPS: dict[str, tuple[type, object, Callable[[Any], object]]] = {
    "pairs": (Pairs, Pairs(), Pairs.of),
    "passages": (Passages, "auto", Passages.of),
    "sentences": (Sentences, None, Sentences.of),
    "rm3": (Rm3, None, Rm3.of),
    "cutoff": (Cutoff, None, Cutoff.of),
    "interleave": (Interleave, None, Interleave.of),
    "traffic": (Traffic, None, Traffic.of),
}
"""Options that are groups of options. For each: its dataclass, its default, and the function that parses a value."""
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "query": (lambda value: value is None or isinstance(value, str), "a string or None"),
    "pipeline": (
        lambda value: isinstance(value, StagePipeline) or value in PIPELINES,
        f"{' or '.join(map(repr, PIPELINES))} or a Pipeline",
    ),
    "depth": (
        lambda value: value == "auto" or _is_whole(value, 1, MAX_DEPTH),
        f'a whole number from 1 to {MAX_DEPTH}, or "auto"',
    ),
    "mono_depth": (lambda value: _is_whole(value, 1, MAX_DEPTH), f"a whole number from 1 to {MAX_DEPTH}"),
    "duo_depth": (
        lambda value: _is_whole(value, 0, MAX_DUO_DEPTH),
        f"a whole number from 0 to {MAX_DUO_DEPTH} (n candidates make n(n - 1) pairs)",
    ),
    "fields": (_are_names, "one or more field names, or None"),
    "separator": (lambda value: isinstance(value, str), "a string"),
    "query_fields": (_are_names, "one or more field names, or None"),
    "deadline_ms": (
        lambda value: value in ("auto", None) or (_is_number(value) and 0 < value <= MAX_MS),
        f'a number of milliseconds above 0, at most {MAX_MS:,} (a day), None for no limit, or "auto"',
    ),
    "on_failure": (lambda value: value in ("first_pass", "raise"), '"first_pass" or "raise"'),
    "min_score": (lambda value: value is None or is_fraction(value), "a probability in [0, 1] or None"),
    "min_probability": (lambda value: value is None or is_fraction(value), "a probability in [0, 1] or None"),
    "explain": (lambda value: isinstance(value, bool), "True or False"),
    "language_guard": (lambda value: isinstance(value, bool), "True or False"),
    "blend": (lambda value: value in BLENDS, " or ".join(f'"{name}"' for name in BLENDS)),
    "boosts": (lambda value: value in get_args(Boosts), '"keep" or "ignore"'),
    "blend_weight": (
        lambda value: value is None or (_is_number(value) and 0 <= value < math.inf),
        "a number of at least 0, or None",
    ),
}
"""For each other option: a function that returns whether a value is valid, and a description of the valid values."""
