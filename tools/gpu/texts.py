"""What the models read on the borrowed machine: passages of known lengths, lists to learn from."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osrerank.formats.lines import numbered_objects

PASSAGE_WORDS = (4.056, 0.4)
"""Mean and standard deviation of the logarithm of MS MARCO passages' words: 96 tokens with a query, on average."""
SEED = 19
SAMPLE = Path("osrerank") / "data" / "squad"
"""SQuAD paragraphs that are in the package."""


class Words:
    """Texts of any length, cut out of SQuAD's paragraphs by a seeded draw.

    Args:
        root: the folder that has the package.
    """

    def __init__(self, root: Path) -> None:
        texts = [line["text"] for _, line in numbered_objects(root / SAMPLE / "corpus.jsonl.gz")]
        self._words = " ".join(texts).split()
        self._draw = np.random.default_rng(SEED)

    def piece(self, length: int) -> str:
        """Return so many words in a row."""
        start = int(self._draw.integers(len(self._words) - length))
        return " ".join(self._words[start : start + length])

    def passage(self) -> str:
        """Return a text with as many words as a passage of MS MARCO may have."""
        return self.piece(int(np.clip(self._draw.lognormal(*PASSAGE_WORDS), 10, 200)))

    def queries(self, count: int, depth: int, words: int = 0) -> list[tuple[str, list[str]]]:
        """Return queries of seven words, each with so many passages, or with texts of so many words."""
        return [
            (self.piece(7), [self.piece(words) if words else self.passage() for _ in range(depth)])
            for _ in range(count)
        ]


def write_examples(lists: Iterator[dict[str, object]], target: Path, most: int = 0) -> int:
    """Write lists as `osrerank.training` reads examples, in a seeded order; return how many there are."""
    chosen = list(lists)
    random.Random(SEED).shuffle(chosen)
    chosen = chosen[: most or len(chosen)]
    target.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in chosen), encoding="utf-8")
    return len(chosen)
