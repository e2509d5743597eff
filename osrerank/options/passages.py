"""The option ``passages``: how long documents are cut into passages, and how the passages' scores are aggregated.

`osrerank.stages.passages` implements it.
"""

from dataclasses import dataclass
from typing import Any, Literal

from osrerank.options.parse import is_count, read_options, unusable

AUTO = "auto"
OFF = "off"
Policy = Literal["first", "sampled"]
PassageAggregation = Literal["maxp", "firstp", "sump", "kmaxavgp"]
PASSAGE_AGGREGATIONS = ("maxp", "firstp", "sump", "kmaxavgp")


@dataclass(frozen=True, slots=True)
class Windows:
    """How a document is cut into passages.

    Attributes:
        words: the number of words of a passage.
        stride: the number of words from the start of a passage to the start of the next; the last passage may lie
            wholly in the one before it.
        limit: the most passages of a document.
        policy: which passages are kept if there are more: ``first``, the first ones, or ``sampled``, the first, the
            last, and a sample of the others that depends only on the seed and the document's id.
        seed: the seed of that sample.
    """

    words: int = 150
    stride: int = 75
    limit: int = 30
    policy: Policy = "first"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Passages:
    """How long documents are scored by their passages.

    Attributes:
        aggregation: the score of a document: ``"maxp"``, that of its best passage; ``"firstp"``, that of its first
            passage, and no other is scored; ``"sump"``, the sum of the passages' probabilities; ``"kmaxavgp"``, the
            mean of the ``k`` highest probabilities, or of all if there are fewer.
        k: the number of passages that ``kmaxavgp`` averages.
        words: the number of words of a passage.
        stride: the number of words from the start of a passage to the start of the next, at most ``words``.
        limit: the most passages of a document.
        policy: which passages are kept if there are more: ``"first"``, the first ones, or ``"sampled"``, the first, the
            last and a sample of the others.
        seed: the seed of that sample; the same document always gets the same sample.
        title_fields: the fields whose text stands before every passage and is not cut.
        least_words: the least number of words of a document that is cut; shorter documents are scored whole.
    """

    aggregation: PassageAggregation = "maxp"
    k: int = 2
    words: int = 150
    stride: int = 75
    limit: int = 30
    policy: Literal["first", "sampled"] = "first"
    seed: int = 0
    title_fields: tuple[str, ...] = ("title",)
    least_words: int = 0

    def __post_init__(self) -> None:
        title_fields: Any = self.title_fields  # from a settings file or a caller, a text or a list
        names = (title_fields,) if isinstance(title_fields, str) else title_fields
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
            raise unusable("passages.title_fields", title_fields, "field names")
        object.__setattr__(self, "title_fields", tuple(names))
        for name in ("k", "words", "stride", "limit"):
            if not is_count(getattr(self, name)):
                raise unusable(f"passages.{name}", getattr(self, name), "a count from 1 on")
        if self.stride > self.words:
            expected = f"at most words ({self.words}), or some words would be in no passage"
            raise unusable("passages.stride", self.stride, expected)
        if self.aggregation not in PASSAGE_AGGREGATIONS:
            raise unusable(
                "passages.aggregation", self.aggregation, " or ".join(f'"{name}"' for name in PASSAGE_AGGREGATIONS)
            )
        if self.policy not in ("first", "sampled"):
            raise unusable("passages.policy", self.policy, '"first" or "sampled"')
        if not is_count(self.least_words) and self.least_words != 0:
            raise unusable("passages.least_words", self.least_words, "a count, 0 to cut every document")
        if type(self.seed) is not int:
            raise unusable("passages.seed", self.seed, "a whole number")

    @classmethod
    def of(cls, value: Any) -> "Passages | Literal['auto'] | None":
        """Read the ``passages`` option of a search: a name of an aggregation, a dict of options, or a bool.

        ``"auto"`` stays as it is; None stands for ``"off"``.

        Raises:
            ConfigError: the value is none of these, or a key or value in it cannot be used.
        """
        name = value.get("aggregation") if isinstance(value, dict) and len(value) == 1 else value
        if isinstance(name, str) and name == AUTO:
            return "auto"
        if isinstance(name, str) and name == OFF:
            return None
        return read_options(cls, value, "passages", first="aggregation")

    @property
    def windows(self) -> Windows:
        """How documents are cut into passages; ``firstp`` needs only the first passage."""
        limit = 1 if self.aggregation == "firstp" else self.limit
        return Windows(self.words, self.stride, limit, self.policy, self.seed)


BY_WINDOW = Passages(words=150, stride=150, limit=30, least_words=350)
"""The passages of ``"auto"`` for models whose card recommends passages; 350 words are about 512 tokens."""
