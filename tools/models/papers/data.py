"""Make the examples that monobert-l6 and duobert-l6 learn from: lists of passages with labels and a teacher's logits.

python -m tools.models.papers.data DATA WORK

DATA holds the collections in folders of their own. Documents become passages of whole sentences. A query's list has the
passage that answers it and others: those that the teacher ranks highest, some that BM25 finds, and some of other
queries. The teacher is osrerank/e5-small with BM25 blended in, as its card says. Its vectors are kept in WORK, so that
the next call goes on where this one was stopped. No text of MS MARCO is read.
"""

import argparse
import json
import random
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from osrerank.formats.files import write_atomically
from osrerank.formats.lines import read_numbered_objects
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank.scoring.bi_encoder import BiEncoder
from osrerank.scoring.registry import load_model
from osrerank.training.examples.example import Example, write_examples
from osrerank.training.examples.first_pass import temporary_search
from tools.models.joined.sets import claims_kept_aside, find_scores

TEACHER = "osrerank/e5-small"
ARTICLES = 170
"""Articles of SQuAD's train split."""
ANSWERS = 1500
"""Answers of MedQuAD."""
WORDS = (40, 70, 110)
"""A passage ends with the sentence that has its document's share of these words."""
FOUND = 50
"""Passages that BM25 finds for a query."""
SHORT, LONG_EVERY = 75, 6
"""Most words of a passage, except in every sixth list: a training reads more short lists in the same time."""
LABEL = 3.0
"""Logits that the passage that answers a query gets besides the teacher's."""
HARD, EASY, FOREIGN = 5, 5, 2
"""Others of a list: the teacher's best, BM25's rest, passages of other queries."""
AT_ONCE = 256
"""Texts that are encoded between two writes."""

Floats = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class TrainingQuery:
    """A query to train on.

    Attributes:
        text: of the query.
        source: the collection.
        own: numbers of the passages of its relevant documents.
        answers: lower-case texts; a passage that contains one may answer the query, whoever wrote it.
        hidden: numbers of passages that are in no list of this query.
    """

    text: str
    source: str
    own: Sequence[int]
    answers: Sequence[str] = ()
    hidden: Sequence[int] = ()


class Pool:
    """Passages of all collections, by number, and the queries about them."""

    def __init__(self) -> None:
        self.passages: list[str] = []
        self.words: list[int] = []
        self.asked: list[TrainingQuery] = []
        self._rng = random.Random(1)

    def add(self, title: str, text: str, *, most: int = 3, words: Sequence[int] = WORDS) -> list[int]:
        """Cut a document into passages, at most so many, and return their numbers."""
        cut = list(sentences_of(text, self._rng.choice(words)))[:most]
        return [self.append(f"{title} {line}".strip()) for line in cut]

    def append(self, passage: str) -> int:
        """Add a passage as it is, and return its number."""
        self.passages.append(passage)
        self.words.append(len(passage.split()))
        return len(self.passages) - 1


def sentences_of(text: str, words: int) -> Iterator[str]:
    """Yield a text's parts: whole sentences until they have so many words. A short rest joins the last part."""
    parts: list[str] = []
    part = ""
    for sentence in re.split(r"(?<=[.!?])\s+", " ".join(text.split())):
        part = f"{part} {sentence}".strip()
        if len(part.split()) >= words:
            parts.append(part)
            part = ""
    if part and parts and len(part.split()) < words // 2:
        parts[-1] += f" {part}"
    elif part:
        parts.append(part)
    yield from parts


def add_squad(pool: Pool, data: Path) -> None:
    """Add some articles of SQuAD's train split, with a question of each paragraph, two where there are many."""
    articles = json.loads((data / "squad" / "train-v1.1.json").read_bytes())["data"]
    rng = random.Random(1)
    for article in rng.sample(articles, ARTICLES):
        for paragraph in article["paragraphs"]:
            passage_numbers = pool.add("", paragraph["context"])
            questions = [
                question_entry for question_entry in paragraph["qas"] if len(question_entry["question"].split()) >= 3
            ]
            for question in rng.sample(questions, min(len(questions), 1 + (len(questions) > 3))):
                answers = [answer["text"].lower() for answer in question["answers"] if len(answer["text"]) > 3]
                pool.asked.append(TrainingQuery(question["question"].strip(), "squad", passage_numbers, answers))


def add_collection(
    pool: Pool,
    folder: Path,
    source: str,
    *,
    most: int,
    leave_out: Iterable[str] = (),
    every: int = 1,
    words: Sequence[int] = WORDS,
) -> None:
    """Add a collection in the common layout; a split's queries lie in ``train``.

    Args:
        pool: to add to.
        folder: of the collection.
        source: its name.
        most: passages of a document.
        leave_out: queries.
        every: how many documents without a relevant query one is kept of.
        words: of a passage.
    """
    split = folder / "train" if (folder / "train").exists() else folder
    qrels = read_qrels(split / "qrels.txt").judgments
    judged_ids = {doc_id for grades in qrels.values() for doc_id in grades}
    numbers_by_id = {
        line["id"]: pool.add(line.get("title") or "", line["text"], most=most, words=words)
        for number, line in read_numbered_objects(folder / "corpus.jsonl")
        if line["id"] in judged_ids or number % every == 0
    }
    skipped = set(leave_out)
    for query in read_queries(split / "queries.tsv"):
        relevant = [doc_id for doc_id, grade in qrels.get(query.query_id, {}).items() if grade > 0]
        if relevant and query.query_id not in skipped:
            passages = [number for doc_id in relevant for number in numbers_by_id[doc_id]]
            pool.asked.append(TrainingQuery(query.text, source, passages))


def add_medquad(pool: Pool, data: Path) -> None:
    """Add some answers of MedQuAD with their questions."""
    lines = [line for _, line in read_numbered_objects(data / "medquad" / "medquad.jsonl") if line["answer"].strip()]
    for line in random.Random(1).sample(lines, ANSWERS):
        passage_numbers = pool.add("", line["answer"], most=2)
        pool.asked.append(TrainingQuery(line["question"].strip(), "medquad", passage_numbers))


def pool_of(data: Path) -> Pool:
    """Return the passages and queries of all collections."""
    pool = Pool()
    scifact = data / "scifact"
    aside = claims_kept_aside(read_qrels(scifact / "train" / "qrels.txt").judgments)
    add_squad(pool, data)
    add_collection(pool, data / "nq-open-oracle", "nq", most=2)
    add_collection(pool, scifact, "scifact", most=1, leave_out=aside, every=4)
    add_collection(pool, data / "pubmedqa-l", "pubmedqa", most=2)
    add_medquad(pool, data)
    return pool


def encoded(encoder: BiEncoder, texts: Sequence[str], side: Any, file: Path) -> Floats:
    """Return the texts' vectors ``(n, hidden)``, those of an earlier call read from the file."""
    width = encoder.dimensions
    stored_rows = (
        np.fromfile(file, np.float32).reshape(-1, width) if file.exists() else np.empty((0, width), np.float32)
    )
    with file.open("ab") as out:
        for start in range(len(stored_rows), len(texts), AT_ONCE):
            rows = encoder.encode(texts[start : start + AT_ONCE], side).rows
            out.write(np.ascontiguousarray(rows, np.float32).tobytes())
            out.flush()
            print(f"{file.name}: {start + len(rows)} of {len(texts)}", flush=True)
    return np.fromfile(file, np.float32).reshape(-1, width)[: len(texts)]


@dataclass(frozen=True, slots=True)
class Teacher:
    """What it knows of the pool.

    Attributes:
        encoder: whose similarity gives logits.
        queries: vectors, in the order of the pool's.
        passages: likewise.
    """

    encoder: BiEncoder
    queries: Floats
    passages: Floats

    def logits(self, query: int, passages: Sequence[int], first_pass: Mapping[int, float]) -> Floats:
        """Return similarities with BM25 blended in."""
        best = max(first_pass.values(), default=1.0)
        lexical = np.array([first_pass.get(number, 0.0) / best for number in passages])
        similarity = self.encoder.similarity(self.queries[query], self.passages[list(passages)])
        return similarity + self.encoder.advice.first_pass_weight * lexical


def searched(pool: Pool, file: Path) -> Iterator[dict[int, float]]:
    """Yield BM25's scores of the passages that it finds for each query; those of an earlier call are read."""
    if not file.exists():
        texts = ((str(number), text) for number, text in enumerate(pool.passages))
        with temporary_search(texts, FOUND) as search:
            write_atomically(file, (f"{json.dumps(find_scores(search, question.text))}\n" for question in pool.asked))
    for _, line in read_numbered_objects(file):
        yield {int(number): score for number, score in line.items()}


def examples(pool: Pool, teacher: Teacher, file: Path, short: int = SHORT) -> Iterator[tuple[str, Example]]:
    """Yield each query's source and list; most lists have passages of at most so many words."""
    rng = random.Random(1)
    for number, (question, found_numbers) in enumerate(zip(pool.asked, searched(pool, file), strict=True)):
        logits = partial(teacher.logits, number, first_pass=found_numbers)
        example_line = listed(pool, question, found_numbers, logits, short if number % LONG_EVERY else sys.maxsize, rng)
        if example_line is not None:
            yield question.source, example_line


def listed(
    pool: Pool, asked: TrainingQuery, found: Mapping[int, float], logits: Any, most: int, rng: random.Random
) -> Example | None:
    """Return a query's list: the passage that answers it, then the others; None where no passage of its own is left.

    Args:
        pool: of the passages.
        asked: the query.
        found: BM25's scores.
        logits: gives the teacher's logits of passages.
        most: words of a passage.
        rng: draws.
    """

    def fits(number: int) -> bool:
        return pool.words[number] <= most and number not in asked.hidden

    def answers(number: int) -> bool:
        text = pool.passages[number].lower()
        return any(answer in text for answer in asked.answers)

    relevant = [number for number in asked.own if fits(number) and (not asked.answers or answers(number))]
    irrelevant = [number for number in found if fits(number) and number not in asked.own and not answers(number)]
    if asked.answers:
        irrelevant += [number for number in asked.own if fits(number) and not answers(number)]
    if not relevant or not irrelevant:
        return None
    best = relevant[int(np.argmax(logits(relevant)))]
    order = [irrelevant[index] for index in np.argsort(-logits(irrelevant), kind="stable")]
    later = order[HARD:]
    drawn = order[:HARD] + rng.sample(later, min(EASY, len(later)))
    foreign = (number for number in rng.sample(range(len(pool.passages)), 99) if fits(number))
    drawn += [number for number in islice(foreign, FOREIGN) if number not in {*relevant, *drawn}]
    chosen = [best, *drawn]
    return Example(
        asked.text,
        tuple(pool.passages[number] for number in chosen),
        (1, *[0] * len(drawn)),
        scores=tuple(round(float(logit), 3) for logit in logits(chosen) + LABEL * (np.arange(len(chosen)) == 0)),
    )


def main() -> None:
    """Write ``train.jsonl``, and ``aside.jsonl`` of one query in thirty."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("work", type=Path)
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    pool = pool_of(options.data)
    print(f"{len(pool.asked)} queries, {len(pool.passages)} passages", flush=True)
    model = load_model(TEACHER, threads=1)
    assert isinstance(model, BiEncoder)
    with closing(model):
        queries = [question.text for question in pool.asked]
        teacher = Teacher(
            model,
            encoded(model, queries, "query", options.work / "queries.f32"),
            encoded(model, pool.passages, "document", options.work / "passages.f32"),
        )
        example_lines = list(examples(pool, teacher, options.work / "found.jsonl"))
    random.Random(1).shuffle(example_lines)
    aside, kept_lines = example_lines[: len(example_lines) // 30], example_lines[len(example_lines) // 30 :]
    write_examples(options.work / "aside.jsonl", (example for _, example in aside))
    count = write_examples(options.work / "train.jsonl", (example for _, example in kept_lines))
    print(f"{count} examples to train on, {len(aside)} aside", flush=True)


if __name__ == "__main__":
    main()
