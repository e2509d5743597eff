"""A small collection with judged questions: 80 about 40 paragraphs of SQuAD."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from osrerank import Client, connect
from osrerank.types import Qrels, Query
from tests.articles import fill
from tests.servers import ROOT

SLICE = ROOT / "tests" / "data" / "squad-200" / "questions.json"
INDEX = "paragraphs"


@dataclass(frozen=True)
class Collection:
    """An index of the embedded engine, with judged queries, also as files."""

    url: str
    queries: tuple[Query, ...]
    qrels: Qrels
    queries_file: str
    qrels_file: str


@pytest.fixture(scope="session")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    folder = tmp_path_factory.mktemp("collection")
    documents, queries, judgments = {}, [], {}
    for article in json.loads(SLICE.read_text("utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            doc_id = f"p{len(documents)}"
            documents[doc_id] = {"title": article["title"], "text": paragraph["context"]}
            for question in paragraph["qas"][:2]:
                queries.append(Query(question["id"], question["question"]))
                judgments[question["id"]] = {doc_id: 1}
    url = f"embedded:{folder / 'engine'}"
    with connect(url) as client:
        fill(client, INDEX, documents)
    (folder / "queries.tsv").write_text("".join(f"{query.query_id}\t{query.text}\n" for query in queries))
    (folder / "qrels.txt").write_text(
        "".join(f"{query_id} 0 {next(iter(grades))} 1\n" for query_id, grades in judgments.items())
    )
    files = str(folder / "queries.tsv"), str(folder / "qrels.txt")
    return Collection(url, tuple(queries), Qrels(judgments), *files)


@pytest.fixture
def client(collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the collection with the shipped model, in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    with connect(collection.url, rerank={"depth": 20}) as client:
        yield client
