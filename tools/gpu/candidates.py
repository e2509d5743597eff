"""Lists of candidates out of collections: found on this machine, by the embedded engine, before anything travels."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run
from osrerank.training.examples.first_pass import from_questions, temporary_search
from tools.gpu.texts import SAMPLE

List = tuple[str, list[str], list[int]]
"""A query, its candidates' texts in the first pass's order, and their relevance."""


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
