"""Make training data by searching: label BM25's top documents by judgments, or by the paragraph a question is from."""

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
"""The minimum number of words in a question; SQuAD has questions of one or two letters."""
BULK = 2000
"""How many lines a bulk request has, two for each document."""


@dataclass(frozen=True, slots=True)
class Search:
    """A search for the candidates of training queries.

    Attributes:
        client: a client of the engine.
        index: the index, whose documents have ``text`` and perhaps ``title``.
        depth: how many documents a search returns.
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
        """Return a document's text; None if the index lacks the document."""
        document = self.client.get(index=self.index, id=doc_id, ignore=404)
        return self._titled(document) if document.get("found") else None

    def _titled(self, hit: Mapping[str, Any]) -> TitledText:
        try:
            return titled({"text": "", **hit["_source"]})
        except TypeError as error:
            raise FormatError(f"index {self.index}, document {hit['_id']}: {error}") from None


def from_index(search: Search, queries: Iterable[Query], qrels: Qrels, *, inject: bool = True) -> Iterator[Example]:
    """Yield an example for each judged query, with its documents in the first pass's order.

    Args:
        search: finds the documents.
        queries: the queries; those without a relevant document are left out.
        qrels: the judgments; a grade above 0 is relevant.
        inject: whether to append relevant documents that the search missed.
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
    """Yield an example for each question in a file of SQuAD's layout, with BM25's paragraphs and the question's.

    Paragraphs are in BM25's order; if BM25 misses the question's paragraph, that paragraph comes last. Other paragraphs
    that contain one of the answers may answer the question, too, and are left out.

    Args:
        path: a file ``{"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}``.
        depth: how many paragraphs BM25 finds for a question.
        questions: how many questions to sample; None for all.
        seed: the seed of the sample.

    Raises:
        FormatError: the file has another layout.
    """
    contexts, numbered_questions = _questions(path)
    if questions is not None and questions < len(numbered_questions):
        numbered_questions = random.Random(seed).sample(numbered_questions, questions)  # noqa: S311 - a repeatable draw
    with temporary_search(((str(number), text) for number, text in enumerate(contexts)), depth) as search:
        hits = search.all_hits(question["question"] for _, question in numbered_questions)
        for (paragraph, question), question_hits in zip(numbered_questions, hits, strict=True):
            yield _example(path, paragraph, question, contexts, question_hits)


@contextmanager
def temporary_search(texts: Iterable[tuple[str, str]], depth: int) -> Iterator[Search]:
    """Yield a search of a temporary embedded index of the texts, given as pairs of id and text."""
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


def _example(
    path: Path, paragraph: int, question: Mapping[str, Any], contexts: list[str], hits: list[tuple[str, TitledText]]
) -> Example:
    answers = [answer["text"].lower() for answer in question.get("answers", []) if answer["text"].strip()]
    texts: list[str] = []
    for doc_id, (text, _title) in hits:
        if int(doc_id) == paragraph or not (
            text == contexts[paragraph] or any(answer in text.lower() for answer in answers)
        ):
            texts.append(text)
    texts += [] if contexts[paragraph] in texts else [contexts[paragraph]]
    grades = tuple(int(text == contexts[paragraph]) for text in texts)
    return Example(question["question"].strip(), tuple(texts), grades, f"{path}, question {question['id']}")


def _questions(path: Path) -> tuple[list[str], list[tuple[int, Mapping[str, Any]]]]:
    """Return the paragraphs, and each question with the number of its paragraph."""
    try:
        articles = json_file(path)["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        contexts = [str(paragraph["context"]) for paragraph in paragraphs]
        questions = [
            (number, question)
            for number, paragraph in enumerate(paragraphs)
            for question in paragraph["qas"]
            if len(question["question"].split()) >= FEWEST_WORDS and question["id"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path}: not in SQuAD's layout: {error!r}", file=str(path)) from error
    return contexts, questions


def _relevant(qrels: Qrels, query: Query) -> set[str]:
    return {doc_id for doc_id, grade in qrels.judgments.get(query.query_id, {}).items() if grade > 0}
