"""What the models read: passages of known lengths, lists of candidates, lists to learn from."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run
from osrerank.training.examples.first_pass import from_questions, temporary_search

PASSAGE_WORDS = (4.056, 0.4)
"""Mean and standard deviation of the logarithm of MS MARCO passages' words: 96 tokens with a query, on average."""
SEED = 19
SAMPLE = Path("osrerank") / "data" / "squad"
"""SQuAD paragraphs that are in the package."""

List = tuple[str, list[str], list[int]]
"""A query, its candidates' texts in the first pass's order, and their relevance."""


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


def sample_lists(root: Path, queries: int, depth: int) -> list[List]:
    """Return lists of the package's sample: BM25's first documents, the relevant one among them."""
    folder = root / SAMPLE
    texts = {line["id"]: line["text"] for _, line in numbered_objects(folder / "corpus.jsonl.gz")}
    qrels = read_qrels(folder / "qrels.txt").judgments
    found = []
    with temporary_search(texts.items(), depth) as search:
        for query in itertools.islice(read_queries(folder / "queries.tsv"), queries):
            relevant = {doc_id for doc_id, grade in qrels.get(query.query_id, {}).items() if grade > 0}
            ids = list(dict.fromkeys([*(doc_id for doc_id, _ in search.hits(query.text)), *sorted(relevant)]))
            found.append((query.text, [texts[one] for one in ids], [int(one in relevant) for one in ids]))
    return found


def run_lists(folder: Path, depth: int) -> list[List]:
    """Return BM25's first passages of a collection in the common layout, with its judgments' grades."""
    texts = {line["id"]: line["text"] for _, line in numbered_objects(folder / "corpus.jsonl")}
    qrels = read_qrels(folder / "qrels.full.txt").judgments
    queries = {query.query_id: query.text for query in read_queries(folder / "queries.tsv")}
    found = []
    for query_id, hits in read_run(folder / "runs" / "BM25.txt").rankings.items():
        ids = [hit.doc_id for hit in hits if hit.doc_id in texts][:depth]
        if query_id in queries and ids:
            grades = [qrels.get(query_id, {}).get(one, 0) for one in ids]
            found.append((queries[query_id], [texts[one] for one in ids], grades))
    return found


def question_lists(data: Path, questions: int, depth: int) -> Iterator[List]:
    """Yield what is learnt from: SQuAD's train questions, and all of Natural Questions'."""
    for example in from_questions(data / "squad" / "train-v1.1.json", depth=depth, questions=questions):
        yield example.query, list(example.documents), list(example.relevance)
    folder = data / "nq-open-oracle"
    texts = {line["id"]: line["text"] for _, line in numbered_objects(folder / "corpus.jsonl")}
    qrels = read_qrels(folder / "qrels.txt").judgments
    with temporary_search(texts.items(), depth) as search:
        for query in read_queries(folder / "queries.tsv"):
            relevant = {
                doc_id for doc_id, grade in qrels.get(query.query_id, {}).items() if grade > 0 and doc_id in texts
            }
            ids = list(dict.fromkeys([*(doc_id for doc_id, _ in search.hits(query.text)), *sorted(relevant)]))
            if relevant and len(ids) > len(relevant):
                yield query.text, [texts[one] for one in ids], [int(one in relevant) for one in ids]


def write_examples(lists: Iterator[dict[str, object]], target: Path, most: int = 0) -> int:
    """Write lists as `osrerank.training` reads examples, in a seeded order; return how many there are."""
    chosen = list(lists)
    random.Random(SEED).shuffle(chosen)
    chosen = chosen[: most or len(chosen)]
    target.write_text("".join(f"{json.dumps(one, ensure_ascii=False)}\n" for one in chosen), encoding="utf-8")
    return len(chosen)


def shortened(lists: Sequence[List], words: int) -> list[List]:
    """Return the lists with documents of at most so many words."""
    return [(query, [" ".join(text.split()[:words]) for text in texts], grades) for query, texts, grades in lists]
