"""Write a collection of random passages with MS MARCO's lengths: 56 words and about 350 bytes on average.

::

    python tools/collections/synthetic_passages.py 1000000 collection.tsv

A passage has 20 to 180 words of a vocabulary of 500,000, distributed by Zipf's law. The most frequent words are the
stop words of OpenSearch's ``english`` analyzer. The file depends only on the number of passages.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from osrerank.embedded.analysis.tokens import STOP_WORDS

VOCABULARY = 500_000
ZIPF_OFFSET = 2.7
"""The offset of the Zipf-Mandelbrot law: the word of rank r has a probability proportional to 1 / (r + offset)."""
MEAN_WORDS, MIN_WORDS, MAX_WORDS = 56, 20, 180
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeio"]
BLOCK_SIZE = 10_000


def passages(count: int, seed: int = 1) -> Iterator[str]:
    """Yield random passages."""
    generator = np.random.default_rng(seed)
    words = np.array([*sorted(STOP_WORDS), *map(_word, range(VOCABULARY - len(STOP_WORDS)))], dtype=object)
    cumulative = np.cumsum(1 / (np.arange(VOCABULARY) + 1 + ZIPF_OFFSET))
    cumulative /= cumulative[-1]
    for start in range(0, count, BLOCK_SIZE):
        size = min(BLOCK_SIZE, count - start)
        lengths = np.clip(generator.gamma(4.0, MEAN_WORDS / 4.0, size), MIN_WORDS, MAX_WORDS).astype(int)
        block = words[np.searchsorted(cumulative, generator.random(int(lengths.sum())))]
        for passage_words in np.split(block, np.cumsum(lengths)[:-1]):
            yield " ".join(passage_words)


def _word(rank: int) -> str:
    """Return a word of a frequency rank; frequent words are short."""
    word = "e"
    while rank >= 0:
        rank, syllable = divmod(rank, len(SYLLABLES))
        word += SYLLABLES[syllable]
        rank -= 1
    return word


def main() -> None:
    """Write the collection."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, help="number of passages")
    parser.add_argument("output", type=Path, help="MS MARCO's collection.tsv: pid TAB passage")
    options = parser.parse_args()
    with options.output.open("w", encoding="utf-8") as file:
        file.writelines(f"{pid}\t{text}\n" for pid, text in enumerate(passages(options.count)))


if __name__ == "__main__":
    main()
