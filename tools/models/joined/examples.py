"""Write what joined layers may learn from: questions with BM25's first documents, of openly licensed collections.

python tools/models/joined/examples.py DATA OUTPUT [--questions 1000]

SciFact's claims are the 600 that may be trained on (`protocol.toml`). One file for each collection, as
``osrerank train --data examples=FILE`` reads it.
"""

import argparse
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from osrerank.formats.lines import numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.training.examples.first_pass import from_index, from_questions, temporary_search
from osrerank.training.examples.lists import Example, text_of, write_examples
from osrerank.types import Qrels, Query
from sets import claims_kept_aside

DEPTH = 16


def documents_of(folder: Path) -> dict[str, str]:
    """Return the documents of a ``corpus.jsonl`` by id, title before text."""
    return {line["id"]: text_of(line) for _, line in numbered_objects(folder / "corpus.jsonl")}


def found(documents: Mapping[str, str], queries: list[Query], qrels: Qrels) -> Iterator[Example]:
    """Yield BM25's first documents of each query, in a random order of the queries."""
    random.Random(1).shuffle(queries)
    with temporary_search(documents.items(), DEPTH) as search:
        yield from from_index(search, queries, qrels)


def nq(data: Path) -> Iterator[Example]:
    """Yield Natural Questions, with SQuAD's train paragraphs among the documents."""
    folder = data / "nq-open-oracle"
    articles = json.loads((data / "squad" / "train-v1.1.json").read_bytes())["data"]
    paragraphs = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    documents = {**documents_of(folder), **{f"squad-{number}": text for number, text in enumerate(paragraphs)}}
    yield from found(documents, [*read_queries(folder / "queries.tsv")], read_qrels(folder / "qrels.txt"))


def scifact(data: Path) -> Iterator[Example]:
    """Yield the claims that may be trained on."""
    folder = data / "scifact"
    qrels = read_qrels(folder / "train" / "qrels.txt")
    kept = set(claims_kept_aside(qrels.judgments))
    queries = [query for query in read_queries(folder / "train" / "queries.tsv") if query.query_id not in kept]
    yield from found(documents_of(folder), queries, qrels)


def pubmedqa(data: Path) -> Iterator[Example]:
    """Yield PubMedQA's questions."""
    folder = data / "pubmedqa-l"
    yield from found(documents_of(folder), [*read_queries(folder / "queries.tsv")], read_qrels(folder / "qrels.txt"))


def medquad(data: Path) -> Iterator[Example]:
    """Yield MedQuAD's questions; an equal question's answers are relevant too."""
    lines = [line for _, line in numbered_objects(data / "medquad" / "medquad.jsonl")]
    answers: dict[str, dict[str, int]] = {}
    for line in lines:
        answers.setdefault(line["question"], {})[line["id"]] = 1
    queries = [Query(str(number), question) for number, question in enumerate(sorted(answers))]
    qrels = Qrels({query.query_id: answers[query.text] for query in queries})
    yield from found({line["id"]: line["answer"] for line in lines}, queries, qrels)


def main() -> None:
    """Write each file that is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--questions", type=int, default=1000, help="of each collection, at most")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    squad = options.data / "squad" / "train-v1.1.json"
    makers: dict[str, Callable[[], Iterator[Example]]] = {
        "squad": lambda: from_questions(squad, depth=DEPTH, questions=options.questions),
        "nq": lambda: nq(options.data),
        "scifact": lambda: scifact(options.data),
        "pubmedqa": lambda: pubmedqa(options.data),
        "medquad": lambda: medquad(options.data),
    }
    for name, make in makers.items():
        file = options.output / f"{name}.jsonl"
        if not file.exists():
            print(f"{name}: {write_examples(file, itertools.islice(make(), options.questions))} examples", flush=True)


if __name__ == "__main__":
    main()
