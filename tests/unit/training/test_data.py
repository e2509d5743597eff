"""Preparation of training data from documents, indices and questions."""

import json
from pathlib import Path

import numpy as np
import pytest

from osrerank.client import connect
from osrerank.errors import FormatError
from osrerank.options.passages import Passages
from osrerank.training.documents import add_scores, choose_best_passages, create_passage_triples, keep_hardest
from osrerank.training.examples.example import Example
from osrerank.training.examples.first_pass import Search, examples_from_index, examples_from_questions
from osrerank.types import Qrels, Query, Scores
from tests.servers import ROOT

SLICE = ROOT / "tests" / "data" / "squad-200" / "questions.json"


class CountsSalt:
    """A scorer that counts a word, and fails on another."""

    def score(self, query, documents, tuples):
        texts = [documents[number] for (number,) in tuples]
        values = [np.nan if "broken" in text else text.count("salt") for text in texts]
        return Scores(np.array(values, dtype=np.float32))


def test_a_scorer_chooses_the_best_passages_and_the_hardest_others() -> None:
    passages = ["salt", "wing", "salt salt salt", "broken salt salt", "salt salt"]
    assert choose_best_passages(CountsSalt(), "q", passages, 2) == ["salt salt salt", "salt salt"]
    assert choose_best_passages(CountsSalt(), "q", passages[:2], 2) == passages[:2]
    example = Example("q", ("wing", "salt", "heat", "salt salt", "broken"), (0, 0, 1, 0, 0))
    (hardest,) = keep_hardest([example], CountsSalt(), 2)
    assert (hardest.documents, hardest.relevance) == (("heat", "salt salt", "salt"), (1, 0, 0))


def test_triples_of_documents_become_triples_of_passages() -> None:
    options = Passages(words=2, stride=2)
    example = Example("q", ("salt one salt salt wing two", "other three four five", "six"), (1, 0, 0), "here")
    triples = list(create_passage_triples([example], options))
    assert [triple.documents[0] for triple in triples] == ["salt one", "salt salt", "wing two"]
    assert {triple.documents[1] for triple in triples} <= {"other three", "four five", "six"}
    assert all(triple.relevance == (1, 0) and triple.location == "here" for triple in triples)
    filtered = list(create_passage_triples([example], options, keep=1, scorer=CountsSalt()))
    assert [triple.documents[0] for triple in filtered] == ["salt salt"]
    assert not list(create_passage_triples([Example("q", ("salt",), (1,))], options))


def test_a_teachers_scores_are_written_beside_their_documents(caplog: pytest.LogCaptureFixture) -> None:
    example = Example("q", ("wing", "salt", "broken", "salt salt"), (0, 1, 0, 0), "line 7")
    (scored,) = add_scores([example], CountsSalt())
    assert (scored.documents, scored.relevance) == (("wing", "salt", "salt salt"), (0, 1, 0))
    assert scored.scores == (0.0, 1.0, 2.0)
    assert "line 7: 1 documents could not be scored" in caplog.text


def test_training_examples_are_made_from_an_index(tmp_path: Path) -> None:
    client = connect(f"embedded:{tmp_path}")
    for doc_id, text in (("a", "low salt"), ("b", "salt and salt"), ("c", "the wing")):
        client.index(index="notes", id=doc_id, body={"title": "T", "text": text}, refresh=True)
    qrels = Qrels({"1": {"c": 1, "a": 1, "gone": 1, "b": 0}, "2": {"b": 0}})
    queries = (Query("1", "salt"), Query("2", "salt"), Query("3", "salt"))
    (example,) = examples_from_index(Search(client, "notes", depth=100), queries, qrels)
    assert example.query == "salt"
    labels = dict(zip(example.documents, example.relevance, strict=True))
    assert labels == {"T salt and salt": 0, "T low salt": 1, "T the wing": 1}
    assert (example.documents[2], set(example.titles)) == ("T the wing", {"T"})
    (example,) = examples_from_index(Search(client, "notes", depth=1), queries, qrels, inject=False)
    assert len(example.documents) == 1
    client.close()


def test_training_examples_are_made_from_questions() -> None:
    content = json.loads(SLICE.read_text())
    answers = {
        question["question"]: question["answers"][0]["text"].lower()
        for article in content["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    }
    examples = list(examples_from_questions(SLICE, depth=10, questions=20))
    assert len(examples) == 20
    assert [example.query for example in examples] == [
        question.query for question in examples_from_questions(SLICE, depth=10, questions=20)
    ]
    for example in examples:
        assert len(example.relevant_documents) == 1
        assert answers[example.query] in example.relevant_documents[0].lower()
        assert 1 <= len(example.negatives) <= 10
        assert not any(answers[example.query] in text.lower() for text in example.negatives)
    assert sum(example.relevance[0] for example in examples) > 10  # BM25 finds most of them first
    assert len(list(examples_from_questions(SLICE, depth=2))) == 200


def test_a_training_file_of_another_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / "squad.json").write_text('{"data": [{"paragraphs": [{"qas": []}]}]}')
    with pytest.raises(FormatError, match=r"squad.json is not a SQuAD file"):
        list(examples_from_questions(tmp_path / "squad.json", depth=3))
