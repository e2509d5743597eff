"""Give examples the scores of a bi-encoder of sentence-transformers, which `soft=true` learns.

python tools/models/score_with_bi_encoder.py sentence-transformers/all-mpnet-base-v2 examples.jsonl scored.jsonl

A score is 20 times the cosine of query and document, as the loss had it that these bi-encoders were trained with. Each
text is encoded once; all vectors are held in memory, 3 KB a text.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
from sentence_transformers import SentenceTransformer

from osrerank.training.examples.lists import Example, read_examples, write_examples

SCALE = 20.0


def scored(example: Example, vectors: dict[str, np.ndarray]) -> Example:
    """Return the example with a score for each document."""
    documents = np.stack([vectors[text] for text in example.documents])
    cosines = documents @ vectors[example.query]
    return replace(example, scores=tuple(round(SCALE * float(cosine), 4) for cosine in cosines))


def main() -> None:
    """Write the examples again, scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="directory or hub id")
    parser.add_argument("examples", type=Path, help="as `osrerank train data` writes them")
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    examples = list(read_examples(options.examples))
    texts = sorted({text for example in examples for text in (example.query, *example.documents)})
    encoded = SentenceTransformer(options.model).encode(texts, normalize_embeddings=True, show_progress_bar=True)
    vectors = dict(zip(texts, encoded, strict=True))
    count = write_examples(options.output, (scored(example, vectors) for example in examples))
    print(f"{options.output}: {count} examples, {len(texts)} texts encoded")


if __name__ == "__main__":
    main()
