"""Write a collection of made-up passages of MS MARCO's lengths: 56 words and some 350 bytes on average.

::

    python tools/collections/synthetic_passages.py 1000000 collection.tsv

A passage has 20 to 180 words, drawn from a vocabulary of 500,000 by Zipf's law; the most frequent are the stop words of
OpenSearch's ``english`` analyzer. The same number gives the same file.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osrerank.embedded.analysis.tokens import STOP_WORDS

VOCABULARY = 500_000
OFFSET = 2.7
"""Of the Zipf-Mandelbrot law: the word of rank r has a probability in proportion to 1 / (r + OFFSET)."""
MEAN_WORDS, FEWEST_WORDS, MAX_WORDS = 56, 20, 180
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeio"]
AT_ONCE = 10_000


def passages(count: int, seed: int = 1) -> Iterator[str]:
    """Yield passages, the same ones for the same seed."""
    draw = np.random.default_rng(seed)
    words = np.array([*sorted(STOP_WORDS), *map(_word, range(VOCABULARY - len(STOP_WORDS)))], dtype=object)
    shares = np.cumsum(1 / (np.arange(VOCABULARY) + 1 + OFFSET))
    shares /= shares[-1]
    for start in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - start)
        lengths = np.clip(draw.gamma(4.0, MEAN_WORDS / 4.0, size), FEWEST_WORDS, MAX_WORDS).astype(int)
        drawn = words[np.searchsorted(shares, draw.random(int(lengths.sum())))]
        for own in np.split(drawn, np.cumsum(lengths)[:-1]):
            yield " ".join(own)


def _word(number: int) -> str:
    """Return a word; frequent ones are short, as in a language."""
    word = "e"
    while number >= 0:
        number, place = divmod(number, len(SYLLABLES))
        word += SYLLABLES[place]
        number -= 1
    return word


def main() -> None:
    """Write as many as are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="passages")
    parser.add_argument("output", type=Path, help="MS MARCO's collection.tsv: pid TAB passage")
    options = parser.parse_args()
    with options.output.open("w", encoding="utf-8") as file:
        file.writelines(f"{pid}\t{text}\n" for pid, text in enumerate(passages(options.count)))


if __name__ == "__main__":
    main()
