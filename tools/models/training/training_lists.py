"""Write what `training.toml` trains on: lists of BM25's first documents of questions, over pools of documents.

python tools/models/training/training_lists.py DATA LISTS [--wide]

It needs tools/models/joined in PYTHONPATH.

One JSON file for each collection, laid out as `sets.py` writes a set.
"""

import argparse
import json
import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples import documents_of
from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.training.examples.first_pass import temporary_search
from sets import claims_kept_aside

PLAN = Path(__file__).with_name("training.toml")
FEWEST_WORDS = 3
SEED = 1


@dataclass(frozen=True, slots=True)
class Collection:
    """Questions and documents.

    Attributes:
        queries: texts by id.
        relevant: documents of each query.
        documents: texts by id.
        answers: strings of each query; another document that has one may answer the query, too, and is left out.
    """

    queries: Mapping[str, str]
    relevant: Mapping[str, frozenset[str]]
    documents: Mapping[str, str]
    answers: Mapping[str, tuple[str, ...]]


def squad(data: Path) -> Collection:
    """Return SQuAD's train questions."""
    articles = json.loads((data / "squad" / "train-v1.1.json").read_bytes())["data"]
    paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
    asked = [
        (question, str(number))
        for number, paragraph in enumerate(paragraphs)
        for question in paragraph["qas"]
        if len(question["question"].split()) >= FEWEST_WORDS
    ]
    return Collection(
        {question["id"]: question["question"].strip() for question, _ in asked},
        {question["id"]: frozenset([own]) for question, own in asked},
        {str(number): paragraph["context"] for number, paragraph in enumerate(paragraphs)},
        {question["id"]: tuple(one["text"].lower() for one in question["answers"]) for question, _ in asked},
    )


def common(folder: Path, split: str = ".") -> Collection:
    """Return a collection in the common layout."""
    queries = {query.query_id: query.text for query in read_queries(folder / split / "queries.tsv")}
    qrels = read_qrels(folder / split / "qrels.txt").judgments
    relevant = {one: frozenset(doc_id for doc_id, grade in qrels.get(one, {}).items() if grade > 0) for one in queries}
    return Collection(queries, relevant, documents_of(folder), {})


def scifact(data: Path) -> Collection:
    """Return SciFact's claims that may be trained on."""
    whole = common(data / "scifact", "train")
    kept = set(claims_kept_aside(read_qrels(data / "scifact" / "train" / "qrels.txt").judgments))
    queries = {one: text for one, text in whole.queries.items() if one not in kept}
    return Collection(queries, whole.relevant, whole.documents, {})


def medquad(data: Path) -> Collection:
    """Return MedQuAD; an equal question's answers are relevant, too."""
    lines = [line for _, line in numbered_objects(data / "medquad" / "medquad.jsonl")]
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        answers[line["question"]].add(line["id"])
    numbered = {str(number): question for number, question in enumerate(sorted(answers))}
    relevant = {number: frozenset(answers[question]) for number, question in numbered.items()}
    return Collection(numbered, relevant, {line["id"]: line["answer"] for line in lines}, {})


COLLECTIONS: Mapping[str, Callable[[Path], Collection]] = {
    "squad": squad,
    "nq": lambda data: common(data / "nq-open-oracle"),
    "scifact": scifact,
    "pubmedqa": lambda data: common(data / "pubmedqa-l"),
    "medquad": medquad,
}


def lists_of(collection: Collection, questions: int, pool: int, depth: int) -> dict[str, Any]:
    """Return a sample of the questions with their lists.

    Args:
        collection: to sample from.
        questions: at most.
        pool: documents to search, at least; 0 for all.
        depth: documents of a list, besides relevant ones that are not found.
    """
    rng = random.Random(SEED)
    able = sorted(
        one for one in collection.queries if collection.relevant.get(one, frozenset()) & collection.documents.keys()
    )
    chosen = rng.sample(able, min(questions, len(able)))
    wanted = {doc_id for one in chosen for doc_id in collection.relevant[one]} & collection.documents.keys()
    others = sorted(collection.documents.keys() - wanted)
    room = len(others) if not pool else max(0, min(pool - len(wanted), len(others)))
    pooled = {doc_id: collection.documents[doc_id] for doc_id in [*sorted(wanted), *rng.sample(others, room)]}
    with temporary_search(pooled.items(), depth) as search:
        found = list(search.all_hits(collection.queries[one] for one in chosen))
    candidates = {
        one: _candidates(collection, one, [doc_id for doc_id, _ in hits], pooled)
        for one, hits in zip(chosen, found, strict=True)
    }
    used = {doc_id for documents in candidates.values() for doc_id in documents}
    return {
        "queries": {one: collection.queries[one] for one in chosen},
        "candidates": candidates,
        "qrels": {one: dict.fromkeys(sorted(collection.relevant[one] & pooled.keys()), 1) for one in chosen},
        "texts": {doc_id: [pooled[doc_id]] for doc_id in sorted(used)},
        "beginnings": {},
    }


def _candidates(
    collection: Collection, query_id: str, hits: Iterable[str], pooled: Mapping[str, str]
) -> dict[str, float]:
    """Return a question's documents in BM25's order, with the reciprocals of their ranks."""
    relevant, answers = collection.relevant[query_id], collection.answers.get(query_id, ())
    kept = [
        doc_id for doc_id in hits if doc_id in relevant or not any(one in pooled[doc_id].lower() for one in answers)
    ]
    missed = sorted((relevant & pooled.keys()).difference(kept))
    return {doc_id: 1 / rank for rank, doc_id in enumerate([*kept, *missed], 1)}


def main() -> None:
    """Write each file that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("lists", type=Path)
    parser.add_argument("--wide", action="store_true", help="the plan's [wide] in place of its [data]")
    options = parser.parse_args()
    options.lists.mkdir(parents=True, exist_ok=True)
    plan = tomllib.loads(PLAN.read_text("utf-8"))["wide" if options.wide else "data"]
    for name, make in COLLECTIONS.items():
        file = options.lists / f"{name}.json"
        if not file.exists():
            made = lists_of(make(options.data), plan[name]["questions"], plan[name]["pool"], plan["depth"])
            file.write_text(json.dumps(made), "utf-8")
            print(f"{name}: {len(made['queries'])} questions, {len(made['texts'])} documents", flush=True)


if __name__ == "__main__":
    main()
