"""Write the development sets of `protocol.toml`, or its test sets: queries with BM25's candidates, judgments, texts.

python tools/models/joined/sets.py DATA OUTPUT [--test] [--depth 1000]

DATA holds the collections in folders of their own. A set is one JSON file; a document beyond the model's window is a
list of passages.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.formats.lines import read_numbered_lines, read_numbered_objects
from osrerank.formats.sources import open_paths
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels, read_run
from osrerank.options.passages import Windows
from osrerank.stages.splitting import find_passages, normalize_spaces
from osrerank.training.examples.example import join_title
from osrerank.training.examples.first_pass import Search, temporary_search
from osrerank.types import Document, Query, Section
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS

WINDOWS = Windows(words=150, stride=150, limit=30)
LONG = 350
"""Words from which on a document may have more than 512 pieces."""
BEGINNING = 512
"""Words of a long document's beginning: not fewer than 512 pieces."""
TRAINED = 600
"""Claims of SciFact's train split that may be trained on."""
DEPTH = 100
"""Candidates of a query that the embedded engine finds."""


def passages(title: str, body: str) -> list[str]:
    """Return a document's texts as a model reads them: one, or its passages."""
    if len(body.split()) < LONG:
        return [f"{title} {body}".strip()]
    cut = find_passages([Section("text", body)], WINDOWS, "")
    return [f"{title} {normalize_spaces(body[span.start : span.end])}".strip() for _, span in cut]


def beginning(title: str, body: str) -> str:
    """Return as much of a long document as a model can read; of a short one nothing."""
    words = body.split()
    return f"{title} {' '.join(words[:BEGINNING])}".strip() if len(words) >= LONG else ""


def searched(
    documents: Mapping[str, tuple[str, str]],
    queries: Sequence[Query],
    qrels: Mapping[str, Mapping[str, int]],
    depth: int,
) -> dict[str, Any]:
    """Return a set whose candidates the embedded engine finds."""
    texts = (
        (doc_id, join_title({"title": title, "text": body}).full_text) for doc_id, (title, body) in documents.items()
    )
    depth = min(depth, len(documents))
    with temporary_search(texts, depth) as search:
        candidates_by_query = {query.query_id: find_scores(search, query.text) for query in queries}
    return _set(queries, candidates_by_query, qrels, documents)


def find_scores(search: Search, query: str) -> dict[str, float]:
    """Return BM25's scores of the documents that it finds for a query."""
    body = {"query": {"match": {"text": query}}, "size": search.depth, "_source": False}
    hits = search.client.search(index=search.index, body=body)["hits"]["hits"]
    return {hit["_id"]: float(hit["_score"]) for hit in hits}


def _set(
    queries: Iterable[Query],
    found: Mapping[str, Mapping[str, float]],
    qrels: Mapping[str, Mapping[str, int]],
    documents: Mapping[str, tuple[str, str]],
) -> dict[str, Any]:
    judged_queries = [query for query in queries if any(grade > 0 for grade in qrels.get(query.query_id, {}).values())]
    wanted_ids = sorted({doc_id for query in judged_queries for doc_id in found.get(query.query_id, {})})
    return {
        "queries": {query.query_id: query.text for query in judged_queries},
        "candidates": {query.query_id: dict(found.get(query.query_id, {})) for query in judged_queries},
        "qrels": {query.query_id: dict(qrels[query.query_id]) for query in judged_queries},
        "texts": {doc_id: passages(*documents[doc_id]) for doc_id in wanted_ids},
        "beginnings": {doc_id: text for doc_id in wanted_ids if (text := beginning(*documents[doc_id]))},
    }


def corpus(folder: Path) -> dict[str, tuple[str, str]]:
    """Return title and text of each document."""
    return {
        line["id"]: (line.get("title") or "", line["text"])
        for _, line in read_numbered_objects(folder / "corpus.jsonl")
    }


def collection(folder: Path, split: str, depth: int) -> dict[str, Any]:
    """Return a split of a collection in the common layout."""
    queries = read_queries(folder / split / "queries.tsv")
    return searched(corpus(folder), queries, read_qrels(folder / split / "qrels.txt").judgments, depth)


def dl21(data: Path, _depth: int) -> dict[str, Any]:
    """Return TREC DL 2021 with the run that is given."""
    return given(data / "msmarco-dl21")


def given(folder: Path) -> dict[str, Any]:
    """Return a collection whose candidates are those of its BM25 run."""
    rankings = read_run(folder / "runs" / "BM25.txt").rankings
    candidates_by_query = {
        query_id: {candidate.doc_id: candidate.score for candidate in ranking} for query_id, ranking in rankings.items()
    }
    qrels = read_qrels(folder / "qrels.full.txt").judgments
    return _set(read_queries(folder / "queries.tsv"), candidates_by_query, qrels, corpus(folder))


def squad(data: Path, depth: int) -> dict[str, Any]:
    """Return a thousand questions of SQuAD's dev over its paragraphs."""
    articles = json.loads((data / "squad" / "dev-v1.1.json").read_bytes())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    documents = {str(number): ("", paragraph["context"]) for number, paragraph in enumerate(paragraphs)}
    questions = [
        (question, str(number)) for number, paragraph in enumerate(paragraphs) for question in paragraph["qas"]
    ]
    sample = random.Random(1).sample(questions, 1000)
    queries = [Query(question["id"], question["question"]) for question, _ in sample]
    return searched(documents, queries, {question["id"]: {own_id: 1} for question, own_id in sample}, depth)


def articles(data: Path, _depth: int) -> dict[str, Any]:
    """Return three hundred questions over SQuAD's articles as long documents."""
    read = [json.loads((data / "squad" / f"{part}-v1.1.json").read_bytes())["data"] for part in ("train", "dev")]
    whole = [article for part in read for article in part]
    documents = {
        str(number): (
            article["title"].replace("_", " "),
            " ".join(paragraph["context"] for paragraph in article["paragraphs"]),
        )
        for number, article in enumerate(whole)
    }
    questions = [
        (question, str(number))
        for number, article in enumerate(whole)
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
        if len(question["question"].split()) >= 3
    ]
    sample = random.Random(1).sample(questions, 300)
    queries = [Query(question["id"], question["question"]) for question, _ in sample]
    return searched(documents, queries, {question["id"]: {own_id: 1} for question, own_id in sample}, 20)


def scifact(data: Path, depth: int) -> dict[str, Any]:
    """Return the train claims that are not trained on."""
    folder = data / "scifact"
    qrels = read_qrels(folder / "train" / "qrels.txt").judgments
    kept_claims = set(claims_kept_aside(qrels))
    queries = [query for query in read_queries(folder / "train" / "queries.tsv") if query.query_id in kept_claims]
    return searched(corpus(folder), queries, qrels, depth)


def claims_kept_aside(qrels: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return the claims for choosing: groups that share no document with the others, in a random order, seed 1."""
    claims_of = defaultdict(list)
    for claim in sorted(qrels):
        for doc_id in qrels[claim]:
            claims_of[doc_id].append(claim)
    groups: list[list[str]] = []
    seen: set[str] = set()
    for claim in sorted(qrels):
        group, todo = [], [claim]
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                group.append(one)
                todo += [other_claim for doc_id in qrels[one] for other_claim in claims_of[doc_id]]
        groups += [group] if group else []
    random.Random(1).shuffle(groups)
    room = len(qrels) - TRAINED
    kept: list[str] = []
    for group in groups:
        if len(kept) + len(group) <= room:
            kept += group
    return kept


def wikiqa(data: Path, _depth: int) -> dict[str, Any]:
    """Return WikiQA's dev questions with their own sentences; BM25 counts all sentences of the split."""
    rows = [line.split("\t") for _, line in read_numbered_lines(data / "wikiqa" / "dev.tsv")]
    documents, queries = {}, {}
    qrels: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for number, (question, text, sentence, label) in enumerate(rows):
        documents[f"{question}-{number}"] = ("", sentence)
        qrels[question][f"{question}-{number}"] = int(label)
        queries[question] = Query(question, text)
    everything = searched(documents, list(queries.values()), qrels, len(rows))
    candidate_scores = {
        question: {doc_id: scores_by_id.get(doc_id, 0.0) for doc_id in qrels[question]}
        for question, scores_by_id in everything["candidates"].items()
    }
    return _set(queries.values(), candidate_scores, qrels, documents)


SETS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "wikiqa": wikiqa,
    "dl21": dl21,
    "checkthat": lambda data, depth: collection(data / "clef2020-checkthat-t2", "dev", depth),
    "scifact": scifact,
    "nfcorpus": lambda data, depth: collection(data / "nfcorpus", "dev", depth),
    "squad": squad,
    "articles": articles,
}


def dl19(data: Path, _depth: int) -> dict[str, Any]:
    """Return TREC DL 2019 with the run that is given."""
    return given(data / "msmarco-dl19")


def cacm(data: Path, depth: int) -> dict[str, Any]:
    """Return CACM's judged topics."""
    folder = data / "cacm"
    read = read_records(LOADERS["trec"], open_paths(folder / "cacm.tar.gz"))
    documents = {article.doc_id: (article.title, article.text) for article in read if isinstance(article, Document)}
    queries = read_queries(folder / "topics.cacm.txt")
    return searched(documents, queries, read_qrels(folder / "qrels.cacm.txt").judgments, depth)


def cranfield(data: Path, depth: int) -> dict[str, Any]:
    """Return Cranfield without the papers that its questions were asked about."""
    folder = data / "cranfield"
    candidate_file = collection(folder, ".", depth)
    sources = {tuple(line.split("\t")[:2]) for _, line in read_numbered_lines(folder / "source_docs.tsv")}
    for query_id, scores_by_id in candidate_file["candidates"].items():
        candidate_file["candidates"][query_id] = {
            doc_id: score for doc_id, score in scores_by_id.items() if (query_id, doc_id) not in sources
        }
    return candidate_file


TESTS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "dl19": dl19,
    "scifact-test": lambda data, depth: collection(data / "scifact", "test", depth),
    "cacm": cacm,
    "cranfield": cranfield,
    "npl": lambda data, depth: collection(data / "npl-vaswani", ".", depth),
}


def main() -> None:
    """Write each set that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--test", action="store_true", help="the test sets, to be looked at once")
    parser.add_argument("--depth", type=int, default=DEPTH, help="candidates of a query, where the engine finds them")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    for name, make in (TESTS if options.test else SETS).items():
        file = options.output / f"{name}.json"
        if not file.exists():
            made = make(options.data, options.depth)
            file.write_text(json.dumps(made), "utf-8")
            passages_read = sum(map(len, made["texts"].values()))
            print(
                f"{name}: {len(made['queries'])} queries, {len(made['texts'])} documents, {passages_read} texts",
                flush=True,
            )


if __name__ == "__main__":
    main()
