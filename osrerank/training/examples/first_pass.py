"""Training data by searching: BM25's top documents of each query, labelled by judgments or by whose question it is."""

import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.client import Client, connect
from osrerank.errors import FormatError
from osrerank.formats.lines import json_file
from osrerank.training.examples.lists import Example, TitledText, titled
from osrerank.types import Qrels, Query

FEWEST_WORDS = 3
"""The fewest characters of a question: SQuAD has some of one letter or two."""
BULK = 2000
"""Lines of a bulk request, two a document."""


@dataclass(frozen=True, slots=True)
class Search:
    """How candidates are found.

    Attributes:
        client: a client of the engine.
        index: the index; its documents have ``title`` and ``text``.
        depth: how many documents each query gets.
        threads: how many queries are searched at a time.
    """

    client: Client
    index: str
    depth: int = 100
    threads: int = 4

    def hits(self, query: str) -> list[tuple[str, TitledText]]:
        """Return the ids and texts of the query's first documents, in order."""
        source = ["title", "text"]
        response = self.client.search(query, index=self.index, size=self.depth, _source=source)
        return [(hit["_id"], self._titled(hit)) for hit in response["hits"]["hits"]]

    def all_hits(self, queries: Iterable[str]) -> Iterator[list[tuple[str, TitledText]]]:
        """Yield the hits of each query, in order."""
        with ThreadPoolExecutor(self.threads) as pool:
            yield from pool.map(self.hits, queries)

    def text(self, doc_id: str) -> TitledText | None:
        """Return a document's text, None if there is no such document."""
        found = self.client.get(index=self.index, id=doc_id, ignore=404)
        return self._titled(found) if found.get("found") else None

    def _titled(self, hit: Mapping[str, Any]) -> TitledText:
        try:
            return titled({"text": "", **hit["_source"]})
        except TypeError as error:
            raise FormatError(f"index {self.index}, document {hit['_id']}: {error}") from None


def from_index(search: Search, queries: Iterable[Query], qrels: Qrels, *, inject: bool = True) -> Iterator[Example]:
    """Yield an example for each judged query, its documents in the first pass's order.

    Args:
        search: finds the documents.
        queries: the queries; one without a relevant document is left out.
        qrels: the judgments; a grade above 0 is relevant.
        inject: whether to append relevant documents that were not found.
    """
    judged = [query for query in queries if _relevant(qrels, query)]
    for query, hits in zip(judged, search.all_hits(query.text for query in judged), strict=True):
        relevant = _relevant(qrels, query)
        missed = sorted(relevant.difference(doc_id for doc_id, _ in hits))
        added = [(doc_id, text) for doc_id in missed if (text := search.text(doc_id)) is not None] if inject else []
        doc_ids, texts = [doc_id for doc_id, _ in (*hits, *added)], [text for _, text in (*hits, *added)]
        yield Example.of(
            query.text,
            texts,
            [int(doc_id in relevant) for doc_id in doc_ids],
            f"{search.index}, query {query.query_id}",
            doc_ids=doc_ids,
            missed=len(missed) - len(added),
        )


def from_questions(path: Path, *, depth: int, questions: int | None = None, seed: int = 1) -> Iterator[Example]:
    """Yield an example for each question of a file in SQuAD's layout: BM25's paragraphs in order, its own among them.

    A question's own paragraph comes last if BM25 does not find it. Other paragraphs that contain one of its answers may
    answer it too, and are left out.

    Args:
        path: ``{"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}``.
        depth: paragraphs that BM25 finds.
        questions: how many to sample; None for all.
        seed: the seed of the sample.

    Raises:
        FormatError: the file is not of that layout.
    """
    contexts, asked = _questions(path)
    if questions is not None and questions < len(asked):
        asked = random.Random(seed).sample(asked, questions)  # noqa: S311 - a repeatable draw
    with temporary_search(((str(number), text) for number, text in enumerate(contexts)), depth) as search:
        hits = search.all_hits(question["question"] for _, question in asked)
        for (own, question), found in zip(asked, hits, strict=True):
            yield _asked(path, own, question, contexts, found)


@contextmanager
def temporary_search(texts: Iterable[tuple[str, str]], depth: int) -> Iterator[Search]:
    """Yield a search over texts with their ids, in a temporary embedded index."""
    with tempfile.TemporaryDirectory(prefix="osrerank-texts-") as folder:
        client = connect(f"embedded:{folder}")
        try:
            bulk: list[dict[str, Any]] = []
            for doc_id, text in texts:
                bulk += [{"index": {"_index": "texts", "_id": doc_id}}, {"text": text}]
                if len(bulk) >= BULK:
                    client.bulk(body=bulk)
                    bulk = []
            if bulk:
                client.bulk(body=bulk)
            client.indices.refresh(index="texts")
            yield Search(client, "texts", depth)
        finally:
            client.close()


def _asked(
    path: Path, own: int, question: Mapping[str, Any], contexts: list[str], found: list[tuple[str, TitledText]]
) -> Example:
    answers = [answer["text"].lower() for answer in question.get("answers", []) if answer["text"].strip()]
    texts: list[str] = []
    for doc_id, (text, _title) in found:
        if int(doc_id) == own or not (text == contexts[own] or any(answer in text.lower() for answer in answers)):
            texts.append(text)
    texts += [] if contexts[own] in texts else [contexts[own]]
    grades = tuple(int(text == contexts[own]) for text in texts)
    return Example(question["question"].strip(), tuple(texts), grades, f"{path}, question {question['id']}")


def _questions(path: Path) -> tuple[list[str], list[tuple[int, Mapping[str, Any]]]]:
    """Return the paragraphs, and each question with the number of its paragraph."""
    try:
        articles = json_file(path)["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        contexts = [str(paragraph["context"]) for paragraph in paragraphs]
        asked = [
            (number, question)
            for number, paragraph in enumerate(paragraphs)
            for question in paragraph["qas"]
            if len(question["question"].split()) >= FEWEST_WORDS and question["id"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not in SQuAD's layout: {error!r}", file=str(path)) from error
    return contexts, asked


def _relevant(qrels: Qrels, query: Query) -> set[str]:
    return {doc_id for doc_id, grade in qrels.judgments.get(query.query_id, {}).items() if grade > 0}
