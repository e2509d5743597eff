"""The option ``passages``: split long documents into passages, and score a document by the scores of its passages.

`osrerank.stages.passages` implements it.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from osrerank.options.parse import invalid_option, is_count, parse_options

AUTO = "auto"
OFF = "off"
Policy = Literal["first", "sampled"]
PassageAggregation = Literal["maxp", "firstp", "sump", "kmaxavgp"]
PASSAGE_AGGREGATIONS = get_args(PassageAggregation)


@dataclass(frozen=True, slots=True)
class Windows:
    """How a document is split into passages: the options of `Passages` that do not concern scores, as explained there.

    The last passage can lie wholly inside the one before it.
    """

    words: int = 150
    stride: int = 75
    limit: int = 30
    policy: Policy = "first"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Passages:
    """How the passages of a long document are chosen and scored.

    Attributes:
        aggregation: the score of a document. ``"maxp"`` is the score of its best passage; ``"firstp"`` is the score of
            its first passage, and no other passage is scored; ``"sump"`` is the sum of the passages' probabilities;
            ``"kmaxavgp"`` is the mean of the ``k`` highest probabilities.
        k: the number of passages that ``kmaxavgp`` averages. If a document has fewer passages, all are averaged.
        words: the number of words in a passage.
        stride: the number of words from the start of a passage to the start of the next, at most ``words``.
        limit: the maximum number of passages of a document.
        policy: the passages that are kept if a document has more than ``limit``. ``"first"`` keeps the first ones;
            ``"sampled"`` keeps the first one, the last one, and a random sample of the others.
        seed: the seed of the random sample. With the same seed, a document always gets the same sample.
        title_fields: the fields whose whole text precedes every passage.
        least_words: documents with fewer words are scored whole.
    """

    aggregation: PassageAggregation = "maxp"
    k: int = 2
    words: int = 150
    stride: int = 75
    limit: int = 30
    policy: Policy = "first"
    seed: int = 0
    title_fields: tuple[str, ...] = ("title",)
    least_words: int = 0

    def __post_init__(self) -> None:
        title_fields: Any = self.title_fields  # a settings file or a caller might pass a string or a list
        names = (title_fields,) if isinstance(title_fields, str) else title_fields
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise invalid_option("passages.title_fields", title_fields, "field names")
        object.__setattr__(self, "title_fields", tuple(names))
        for name in ("k", "words", "stride", "limit"):
            if not is_count(getattr(self, name)):
                raise invalid_option(f"passages.{name}", getattr(self, name), "a whole number of at least 1")
        if self.stride > self.words:
            expected = f"at most words ({self.words}), or some words would be in no passage"
            raise invalid_option("passages.stride", self.stride, expected)
        if self.aggregation not in PASSAGE_AGGREGATIONS:
            expected = " or ".join(f'"{name}"' for name in PASSAGE_AGGREGATIONS)
            raise invalid_option("passages.aggregation", self.aggregation, expected)
        if self.policy not in ("first", "sampled"):
            raise invalid_option("passages.policy", self.policy, '"first" or "sampled"')
        if not is_count(self.least_words) and self.least_words != 0:
            raise invalid_option("passages.least_words", self.least_words, "a whole number of at least 0")
        if type(self.seed) is not int:
            raise invalid_option("passages.seed", self.seed, "a whole number")

    @classmethod
    def of(cls, value: Any) -> "Passages | Literal['auto'] | None":
        """Parse the ``passages`` option: ``"auto"``, ``"off"``, an aggregation's name, a dict of options, or a bool.

        Returns ``"auto"`` unchanged, and None for ``"off"``.

        Raises:
            ConfigError: the value has another type, an unknown key, or an invalid value.
        """
        # {"aggregation": "auto"} means "auto", and {"aggregation": "off"} means "off"
        name = value.get("aggregation") if isinstance(value, dict) and len(value) == 1 else value
        if name == AUTO:
            return "auto"
        if name == OFF:
            return None
        return parse_options(cls, value, "passages", text_key="aggregation")

    @property
    def windows(self) -> Windows:
        """How documents are split into passages. For ``firstp``, a document is split into its first passage only."""
        limit = 1 if self.aggregation == "firstp" else self.limit
        return Windows(self.words, self.stride, limit, self.policy, self.seed)


AUTO_PASSAGES = Passages(words=150, stride=150, limit=30, least_words=350)
"""The options that ``"auto"`` stands for if the model's card recommends passages. 350 words are about 512 tokens."""
