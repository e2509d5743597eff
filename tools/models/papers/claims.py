"""Make the second training's examples: whole abstracts, and sentences that ask for the passage they are from.

python -m tools.models.papers.claims DATA WORK

The first training read short passages and questions, and ranked SciFact and CheckThat worse than BM25 does. So this
adds the claims of SciFact and the questions of PubMedQA over whole abstracts, and as queries sentences of PubMedQA's
abstracts and of other passages. The passage that answers such a query is the rest of its own, sometimes all of it.
Lists are as `data.py` makes them, of the same teacher; vectors are kept in WORK.
"""

import argparse
import random
import re
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from osrerank.formats.trec import read_qrels
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.registry import load_model
from osrerank.training.examples.example import write_examples
from tools.models.joined.sets import claims_kept_aside
from tools.models.papers.data import (
    TEACHER,
    Floats,
    Pool,
    Teacher,
    TrainingQuery,
    add_collection,
    encoded,
    examples,
    pool_of,
)

WHOLE = (230,)
"""Words of an abstract."""
PASSAGES, SENTENCES = 6000, 3000
"""Short passages, and how many of them a sentence asks for."""
KEPT = 0.3
"""Share of the sentences' passages that are left whole."""


def abstracts(data: Path, aside: Sequence[str]) -> Pool:
    """Return whole abstracts with their queries, and sentences of PubMedQA's."""
    pool = Pool()
    add_collection(pool, data / "scifact", "scifact", most=1, leave_out=aside, every=6, words=WHOLE)
    first = len(pool.passages)
    add_collection(pool, data / "pubmedqa-l", "pubmedqa", most=1, words=WHOLE)
    add_sentences(pool, range(first, len(pool.passages)), "abstracts")
    return pool


def short(whole: Pool, vectors: Floats, file: Path) -> Pool:
    """Return some of the first training's passages, the first of them asked for by a sentence.

    Args:
        whole: the first training's.
        vectors: of its passages.
        file: for those of the passages that are returned.
    """
    cited_numbers = {
        number for asked_question in whole.asked if asked_question.source != "scifact" for number in asked_question.own
    }
    kept_numbers = random.Random(2).sample(sorted(cited_numbers), PASSAGES)
    pool = Pool()
    for number in kept_numbers:
        pool.append(whole.passages[number])
    if not file.exists():
        np.ascontiguousarray(vectors[kept_numbers], np.float32).tofile(file)
    add_sentences(pool, range(SENTENCES), "sentences")
    return pool


def add_sentences(pool: Pool, numbers: Sequence[int], source: str) -> None:
    """Add a query of each passage that has three sentences, and the passage without that sentence."""
    rng = random.Random(3)
    for number in numbers:
        sentences = re.split(r"(?<=[.!?])\s+", pool.passages[number])
        some = [sentence for sentence in sentences if 8 <= len(sentence.split()) <= 30]
        if len(sentences) < 3 or not some:
            continue
        chosen_sentence = rng.choice(some)
        other_sentences = [sentence for sentence in sentences if sentence != chosen_sentence]
        own_numbers = [number]
        if rng.random() > KEPT:
            own_numbers = [pool.append(" ".join(other_sentences))]
        pool.asked.append(TrainingQuery(chosen_sentence, source, own_numbers, hidden=(number,)))


def main() -> None:
    """Write ``second.jsonl``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    options = parser.parse_args()
    aside = claims_kept_aside(read_qrels(options.data / "scifact" / "train" / "qrels.txt").judgments)
    model = load_model(TEACHER, threads=1)
    assert isinstance(model, BiEncoder)
    vectors = np.fromfile(options.work / "passages.f32", np.float32).reshape(-1, model.dimensions)
    pools = {
        "abstracts": abstracts(options.data, aside),
        "sentences": short(pool_of(options.data), vectors, options.work / "sentences.passages.f32"),
    }
    all_examples = []
    with closing(model):
        for name, pool in pools.items():
            print(f"{name}: {len(pool.asked)} queries, {len(pool.passages)} passages", flush=True)
            files = [options.work / f"{name}.{part}" for part in ("queries.f32", "passages.f32", "found.jsonl")]
            queries = encoded(model, [asked_question.text for asked_question in pool.asked], "query", files[0])
            teacher = Teacher(model, queries, encoded(model, pool.passages, "document", files[1]))
            all_examples += [example for _, example in examples(pool, teacher, files[2], sys.maxsize)]
    random.Random(1).shuffle(all_examples)
    print(f"{write_examples(options.work / 'second.jsonl', all_examples)} examples", flush=True)


if __name__ == "__main__":
    main()
