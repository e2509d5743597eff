"""Create training examples from the hits of searches for judged queries, or for questions about known paragraphs."""

import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank._bad_value import describe_bad_value
from osrerank.client import Client, connect
from osrerank.errors import FormatError
from osrerank.formats.lines import read_json_file
from osrerank.training.examples.example import Example, TitledText, join_title
from osrerank.types import Qrels, Query

MIN_QUESTION_WORDS = 3
"""Questions with fewer words are left out, because some entries of SQuAD are a letter or a word, and no question."""
SEARCH_THREADS = 4
BULK_LINES = 2000
"""The number of lines in a bulk request, of which each document has two: an action and the document itself."""


@dataclass(frozen=True, slots=True)
class Search:
    """Searches an index for the candidates of training queries.

    Attributes:
        client: a client of the engine.
        index: an index whose documents contain the field ``text`` and optionally ``title``.
        depth: how many documents a search returns.
    """

    client: Client
    index: str
    depth: int

    def find_hits(self, query: str) -> list[tuple[str, TitledText]]:
        """Return the id and the text of each of a query's hits, in rank order."""
        source = ["title", "text"]
        response = self.client.search(query, index=self.index, size=self.depth, _source=source)
        return [(hit["_id"], self._parse_text(hit)) for hit in response["hits"]["hits"]]

    def find_all_hits(self, queries: Iterable[str]) -> Iterator[list[tuple[str, TitledText]]]:
        """Yield the hits of each query, in the order of the queries. `SEARCH_THREADS` searches run at the same time."""
        with ThreadPoolExecutor(SEARCH_THREADS) as pool:
            yield from pool.map(self.find_hits, queries)

    def get_text(self, doc_id: str) -> TitledText | None:
        """Return a document's text, or None if the document is not in the index."""
        document = self.client.get(index=self.index, id=doc_id, ignore=404)
        return self._parse_text(document) if document.get("found") else None

    def _parse_text(self, hit: Mapping[str, Any]) -> TitledText:
        try:
            return join_title({"text": "", **hit["_source"]})
        except TypeError as error:
            raise FormatError(f"index {self.index}, document {hit['_id']}: {error}") from None


def examples_from_index(
    search: Search, queries: Iterable[Query], qrels: Qrels, *, inject: bool = True
) -> Iterator[Example]:
    """Create an example for each query that has a relevant document, with the hits in rank order.

    Documents with a grade above 0 are relevant. If ``inject`` is set, relevant documents that the search did not find
    are read from the index and appended. Relevant documents that the example lacks are counted in `Example.missed`.
    """
    judged_queries = [query for query in queries if _find_relevant_ids(qrels, query)]
    all_hits = search.find_all_hits(query.text for query in judged_queries)
    for query, hits in zip(judged_queries, all_hits, strict=True):
        relevant_ids = _find_relevant_ids(qrels, query)
        documents = dict(hits)
        if inject:
            for doc_id in sorted(relevant_ids - documents.keys()):
                text = search.get_text(doc_id)
                if text is not None:
                    documents[doc_id] = text
        yield Example.from_texts(
            query.text,
            documents.values(),
            [int(doc_id in relevant_ids) for doc_id in documents],
            f"{search.index}, query {query.query_id}",
            doc_ids=documents,
            missed=len(relevant_ids - documents.keys()),
        )


def examples_from_questions(
    path: Path, *, depth: int, questions: int | None = None, seed: int = 1
) -> Iterator[Example]:
    """Create an example for each question in a file in SQuAD's layout.

    The paragraph that the question asks about is relevant, and the other paragraphs that BM25 finds are negatives.
    Of these, paragraphs that contain an answer are left out, because they might be relevant. An example's documents are
    in BM25's order, but the relevant paragraph comes last if BM25 does not find it.

    Args:
        path: a file ``{"data": [{"paragraphs": [{"context", "qas": [{"question", "answers": [{"text"}]}]}]}]}``.
        depth: how many paragraphs BM25 retrieves for a question.
        questions: how many questions to sample. If None, all questions are used.
        seed: the seed of the sample.

    Raises:
        FormatError: the file has another layout.
    """
    paragraphs, chosen = _read_questions(path)
    if questions is not None and questions < len(chosen):
        chosen = random.Random(seed).sample(chosen, questions)  # noqa: S311 - a repeatable draw
    with temporary_search(((str(index), text) for index, text in enumerate(paragraphs)), depth) as search:
        all_hits = search.find_all_hits(entry["question"] for _paragraph_index, entry in chosen)
        for (paragraph_index, entry), hits in zip(chosen, all_hits, strict=True):
            yield _create_question_example(path, paragraphs, paragraph_index, entry, hits)


@contextmanager
def temporary_search(texts: Iterable[tuple[str, str]], depth: int) -> Iterator[Search]:
    """Yield a search over documents, given as ``(id, text)``, which a temporary embedded engine indexes."""
    with tempfile.TemporaryDirectory(prefix="osrerank-texts-") as folder:
        client = connect(f"embedded:{folder}")
        try:
            lines: list[dict[str, Any]] = []
            for doc_id, text in texts:
                lines += [{"index": {"_index": "texts", "_id": doc_id}}, {"text": text}]
                if len(lines) >= BULK_LINES:
                    client.bulk(body=lines)
                    lines = []
            if lines:
                client.bulk(body=lines)
            client.indices.refresh(index="texts")
            yield Search(client, "texts", depth)
        finally:
            client.close()


def _create_question_example(
    path: Path,
    paragraphs: list[str],
    relevant_index: int,
    entry: Mapping[str, Any],
    hits: list[tuple[str, TitledText]],
) -> Example:
    """Return the example of a question, which is an entry of the file. The ids of the hits are paragraph indices."""
    relevant_text = paragraphs[relevant_index]
    answers = [answer["text"].lower() for answer in entry.get("answers", []) if answer["text"].strip()]
    texts: list[str] = []
    for doc_id, (text, _title) in hits:
        # the file can contain the relevant text twice
        may_answer = text == relevant_text or any(answer in text.lower() for answer in answers)
        if int(doc_id) == relevant_index or not may_answer:
            texts.append(text)
    if relevant_text not in texts:
        texts.append(relevant_text)
    grades = tuple(int(text == relevant_text) for text in texts)
    return Example(entry["question"].strip(), tuple(texts), grades, f"{path}, question {entry['id']}")


def _read_questions(path: Path) -> tuple[list[str], list[tuple[int, Mapping[str, Any]]]]:
    """Return the paragraphs' texts, and the questions, each as ``(index of its paragraph, entry of the file)``."""
    try:
        articles = read_json_file(path)["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        texts = [str(paragraph["context"]) for paragraph in paragraphs]
        questions = [
            (index, entry)
            for index, paragraph in enumerate(paragraphs)
            for entry in paragraph["qas"]
            if len(entry["question"].split()) >= MIN_QUESTION_WORDS and entry["id"]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is not a SQuAD file: {describe_bad_value(error)}", file=str(path)) from error
    return texts, questions


def _find_relevant_ids(qrels: Qrels, query: Query) -> set[str]:
    return {doc_id for doc_id, grade in qrels.judgments.get(query.query_id, {}).items() if grade > 0}
