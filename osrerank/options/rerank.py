"""The options of a reranked search, each with what it may be; unknown names are refused."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from osrerank.errors import ConfigError
from osrerank.options.pairs import Pairs
from osrerank.options.passages import Passages
from osrerank.options.rm3 import Rm3
from osrerank.options.sentences import Sentences
from osrerank.types import FailurePolicy, StagePipeline

NO_STAGES = "none"
MONO_DUO = "mono-duo"
PIPELINES = ("mono", MONO_DUO, NO_STAGES)
BLENDS = ("card", "replace", "linear", "weighted", "rrf")
INSTALLED = "osrerank"
"""The search pipeline that ``osrerank pipeline install`` makes unless told another name."""
MAX_DEPTH = 10_000
"""OpenSearch's default result window: no first pass brings more."""
MAX_DUO_DEPTH = 1_000


@dataclass(frozen=True, slots=True)
class Rerank:
    """The options of one reranked search.

    Attributes:
        query: the text that candidates are judged against; taken from the search itself when None.
        pipeline: ``"mono"``; ``"mono-duo"``, with the best of mono compared in pairs; ``"none"`` for the first pass
            alone; or a ``Pipeline`` of your own.
        depth: candidates reranked by the first stage (k0).
        duo_depth: candidates compared in pairs (k1), at most ``depth``; 0 and 1 leave the order before.
        pairs: which pairs are compared and what a candidate gets of them: ``"sum"``, ``"binary"``, ``"min"``,
            ``"max"``, ``"sample"``, a dict of options or ``Pairs``.
        mono_budget_ms: time for the first stage, in milliseconds; None for all that the deadline leaves.
        duo_budget_ms: time for the pairs, likewise.
        duo_skip_margin: the pairs are left out where the first candidate leads by at least this much; a heuristic
            (``osrerank.stages.duo``), off when None.
        fields: fields whose text the model reads, dotted paths allowed, joined in this order.
        separator: what joins the fields' texts, and the values of a list.
        query_fields: fields that a query given as text is matched against, ``name^boost`` allowed.
        deadline_ms: time for the whole call, in milliseconds; None for no limit. It never cuts the first pass short.
        on_failure: ``"first_pass"`` answers with the best order so far, marked; ``"raise"`` raises.
        cache: whether the score cache is used, where there is one.
        min_score: least probability, in [0, 1], that a hit must have to be returned; hits that no model scored have
            none and are not. Totals stay the first pass's. It filters nothing where reranking was not applied.
        explain: whether each hit says how it got its place, and each stage what it found of pairs.
        blend: ``"card"`` does what the model's card recommends; ``"replace"`` orders by the model alone; ``"linear"``,
            ``"weighted"`` and ``"rrf"`` blend in the first pass (``osrerank.stages.interpolate``).
        blend_weight: of the first pass: logits for its best score in a linear blend (the card's when None), a share in
            [0, 1] in a weighted one (half when None).
        passages: None scores a document by its beginning, as far as the model reads; ``"maxp"``, ``"firstp"``,
            ``"sump"``, ``"kmaxavgp"``, a dict of options or ``Passages`` scores its passages.
        sentences: True, a dict of options or ``Sentences`` scores documents by their best sentences, as Birch does,
            together with the first pass; in place of ``passages`` and ``blend``.
        rm3: True, a dict of options or ``Rm3`` widens the first pass's query by feedback; for a query given as text.
        via: ``"client"`` reranks here; ``"pipeline"``, or ``"pipeline:NAME"``, lets OpenSearch rerank by the search
            pipeline that ``osrerank pipeline install`` made. That has the model, fields and order that it was made
            with: of the other options ``query``, ``depth``, ``query_fields``, ``on_failure`` and ``rm3`` count.
    """

    query: str | None = None
    pipeline: str | StagePipeline = "mono"
    depth: int = 100
    duo_depth: int = 20
    pairs: Pairs = field(default_factory=Pairs)
    mono_budget_ms: float | None = None
    duo_budget_ms: float | None = None
    duo_skip_margin: float | None = None
    fields: tuple[str, ...] = ("title", "text")
    separator: str = " "
    query_fields: tuple[str, ...] = ("title", "text")
    deadline_ms: float | None = None
    on_failure: FailurePolicy = "first_pass"
    cache: bool = True
    min_score: float | None = None
    explain: bool = False
    blend: Literal["card", "replace", "linear", "weighted", "rrf"] = "card"
    blend_weight: float | None = None
    passages: Passages | None = None
    sentences: Sentences | None = None
    rm3: Rm3 | None = None
    via: str = "client"

    @property
    def search_pipeline(self) -> str | None:
        """The search pipeline that reranks in OpenSearch; None when the client does."""
        kind, _, name = self.via.partition(":")
        return (name or INSTALLED) if kind == "pipeline" else None

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", Pairs.of(self.pairs))
        object.__setattr__(self, "passages", Passages.of(self.passages))
        object.__setattr__(self, "sentences", Sentences.of(self.sentences))
        object.__setattr__(self, "rm3", Rm3.of(self.rm3))
        for name in ("fields", "query_fields"):
            value = getattr(self, name)
            if isinstance(value, str | list):
                object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        for name, (fits, expected) in _RULES.items():
            value = getattr(self, name)
            if not fits(value):
                message = f"rerank option {name} is {value!r}; it must be {expected}"
                raise ConfigError(message, setting=f"rerank.{name}", source="argument")
        if self.blend == "weighted" and self.blend_weight is not None and not _is_share(self.blend_weight):
            message = (
                f"rerank option blend_weight is {self.blend_weight!r}; in a weighted blend it is a share in [0, 1]"
            )
            raise ConfigError(message, setting="rerank.blend_weight", source="argument")

        if self.sentences is not None and (self.passages is not None or self.blend not in ("card", "replace")):
            message = "rerank option sentences stands in place of passages and blend: leave these out"
            raise ConfigError(message, setting="rerank.sentences", source="argument")
        self._check_via()

    def _check_via(self) -> None:
        """Refuse options that OpenSearch's own reranking cannot follow."""
        if self.search_pipeline is None:
            return
        given = [name for name, neutral in _CLIENT_ONLY.items() if getattr(self, name) not in neutral]
        if given:
            message = f"rerank option {given[0]} is the client's: it does not go with via={self.via!r}, leave it out"
            raise ConfigError(message, setting=f"rerank.{given[0]}", source="argument")

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
        known = [one.name for one in fields(cls)]
        for name in value:
            if name not in known:
                raise ConfigError(
                    f"rerank has no option {name!r}; known are {', '.join(known)}",
                    setting=f"rerank.{name}",
                    source="argument",
                )
        return replace(defaults, **value)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 1


def _are_names(value: object) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(isinstance(item, str) and item for item in value)


def _is_duration(value: Any) -> bool:
    return value is None or (_is_number(value) and value > 0)


_DURATION = "a positive number of milliseconds or None"
# option that OpenSearch's own reranking does not know -> values that ask for nothing of it
_CLIENT_ONLY: dict[str, tuple[Any, ...]] = {
    "pipeline": ("mono",),
    "duo_skip_margin": (None,),
    "mono_budget_ms": (None,),
    "duo_budget_ms": (None,),
    "deadline_ms": (None,),
    "min_score": (None,),
    "explain": (False,),
    "blend": ("card", "replace"),
    "passages": (None,),
    "sentences": (None,),
}
# option -> whether a value fits, and what it must be
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "query": (lambda value: value is None or isinstance(value, str), "a text or None"),
    "pipeline": (
        lambda value: isinstance(value, StagePipeline) or value in PIPELINES,
        f"{' or '.join(map(repr, PIPELINES))} or a Pipeline",
    ),
    "depth": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_DEPTH,
        f"a count from 1 to {MAX_DEPTH}",
    ),
    "duo_depth": (
        lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_DUO_DEPTH,
        f"a count from 0 to {MAX_DUO_DEPTH}: n candidates are n(n - 1) pairs",
    ),
    "mono_budget_ms": (_is_duration, _DURATION),
    "duo_budget_ms": (_is_duration, _DURATION),
    "duo_skip_margin": (
        lambda value: value is None or (_is_number(value) and 0 < value < math.inf),
        "a positive number, in the unit of the scores before, or None",
    ),
    "fields": (_are_names, "one or more field names"),
    "separator": (lambda value: isinstance(value, str), "a text"),
    "query_fields": (_are_names, "one or more field names"),
    "deadline_ms": (_is_duration, _DURATION),
    "on_failure": (lambda value: value in ("first_pass", "raise"), '"first_pass" or "raise"'),
    "cache": (lambda value: isinstance(value, bool), "True or False"),
    "via": (
        lambda value: isinstance(value, str) and re.fullmatch(r"client|pipeline(:[^,/\s]+)?", value) is not None,
        '"client", "pipeline" or "pipeline:NAME"',
    ),
    "min_score": (lambda value: value is None or _is_share(value), "a probability in [0, 1] or None"),
    "explain": (lambda value: isinstance(value, bool), "True or False"),
    "blend": (lambda value: value in BLENDS, " or ".join(f'"{name}"' for name in BLENDS)),
    "blend_weight": (
        lambda value: value is None or (_is_number(value) and 0 <= value < math.inf),
        "a number from 0 on (in a weighted blend up to 1) or None",
    ),
}
