"""Sources of training examples: triples, runs, candidates, labelled pairs, and texts by offset."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from osrerank.errors import ConfigError, FormatError
from osrerank.training.examples import texts as text_files
from osrerank.training.examples.example import Example, read_examples, write_examples
from osrerank.training.examples.sources import open_source
from osrerank.training.examples.texts import TextFile

CORPUS = '{"id": "d1", "title": "Salt", "text": "lowers nothing"}\n{"_id": "d2", "text": "bed rest"}\n'


def file(folder: Path, name: str, content: str) -> str:
    (folder / name).write_text(content, encoding="utf-8")
    return str(folder / name)


def read(**options: object) -> list[Example]:
    return list(open_source(options).read())


def test_training_triples_are_read_as_texts_and_as_ids(tmp_path: Path) -> None:
    (example,) = read(triples=file(tmp_path, "t.tsv", "low pressure\tsalt is low\tthe wing\n"))
    assert (example.query, example.documents, example.relevance) == (
        "low pressure",
        ("salt is low", "the wing"),
        (1, 0),
    )
    assert example.location.endswith("t.tsv, line 1")
    examples = read(
        **{"id-triples": file(tmp_path, "t.tsv", "7\td2\td1\n")},
        corpus=file(tmp_path, "c.jsonl", CORPUS),
        queries=file(tmp_path, "q.tsv", "7\tlow pressure\n"),
    )
    assert [(example.query, example.documents) for example in examples] == [
        ("low pressure", ("bed rest", "Salt lowers nothing"))
    ]


def test_a_run_gives_negatives_and_relevant_documents_that_it_missed(tmp_path: Path) -> None:
    options = {
        "run": file(tmp_path, "run.txt", "7 Q0 d1 1 9.5 bm25\n7 Q0 d3 2 9.0 bm25\n7 Q0 d4 3 8.0 bm25\n"),
        "corpus": file(tmp_path, "c.tsv", "d1\tone\nd2\ttwo\nd3\tthree\nd4\tfour\n"),
        "queries": file(tmp_path, "q.tsv", "7\tlow\n"),
        "qrels": file(tmp_path, "qrels.txt", "7 0 d2 1\n7 0 d3 2\n7 0 d1 0\n"),
    }
    (example,) = read(**options, depth=2)
    assert (example.documents, example.relevance) == (("one", "three", "two"), (0, 1, 1))
    (example,) = read(**options, depth="2", inject="false")
    assert (example.documents, example.relevance) == (("one", "three"), (0, 1))
    (example,) = read(**options, relevant=2)
    assert (example.documents, example.relevance) == (("one", "three", "four"), (0, 1, 0))


def test_training_examples_are_read_from_candidates(tmp_path: Path) -> None:
    line = {
        "query_id": 7,
        "query": "low",
        "candidates": [{"doc_id": "a", "text": "x", "title": "t"}, {"doc_id": "b", "text": "y"}],
    }
    (example,) = read(
        candidates=file(tmp_path, "c.jsonl", json.dumps(line)), qrels=file(tmp_path, "qrels.txt", "7 0 b 1\n")
    )
    assert (example.documents, example.relevance) == (("t x", "y"), (0, 1))


def test_labelled_pairs_are_read_as_texts_and_as_ids(tmp_path: Path) -> None:
    wikiqa = "1\thow are caves formed ?\tby ice\t0\n1\thow are caves formed ?\tby water\t1\n2\twhat is salt\tsalt\t1\n"
    examples = read(pairs=file(tmp_path, "w.tsv", wikiqa))
    assert [(example.query, example.documents, example.relevance) for example in examples] == [
        ("how are caves formed ?", ("by ice", "by water"), (0, 1)),
        ("what is salt", ("salt",), (1,)),
    ]
    birch = "1\t9.5\tlow\ta sentence\t301\td_1\t301\t0\n0\t9.5\tlow\tanother\t301\td_2\t301\t1\n"
    (example,) = read(pairs=file(tmp_path, "b.tsv", birch))
    assert (example.query, example.documents, example.relevance) == ("low", ("a sentence", "another"), (1, 0))


def test_written_training_examples_are_read_back(tmp_path: Path) -> None:
    examples = [Example("q", ("a\tb", "c"), (1, 0), scores=(1.5, -2.0)), Example("é", ("",), (0,))]
    assert write_examples(tmp_path / "e.jsonl.gz", examples) == 2
    read_back = list(read_examples(tmp_path / "e.jsonl.gz"))
    assert [replace(example, location="") for example in read_back] == examples


def test_examples_with_half_a_surrogate_pair_are_written_and_read_back(tmp_path: Path) -> None:
    content = '{"query": "low \\ud800", "documents": ["a", "b"], "relevance": [1, 0]}\n'
    (example,) = read(examples=file(tmp_path, "e.jsonl", content))
    write_examples(tmp_path / "again.jsonl", [example])
    (again,) = read_examples(tmp_path / "again.jsonl")
    assert again.query == example.query == "low \ud800"


@pytest.mark.parametrize(
    ("kind", "content", "line", "message"),
    [
        ("triples", "q\ta\tb\nq\ta\n", 2, "found 2 columns"),
        ("triples", " \ta\tb\n", 1, "no text"),
        ("pairs", "1\tq\ttext\tyes\n", 1, "must be 0 or 1"),
        ("pairs", "1\tq\n", 1, "found 2"),
        ("examples", '{"query": "q", "documents": ["a"], "relevance": [1, 0]}\n', 1, "1 documents have 2"),
        ("examples", '{"query": "q", "documents": ["a"], "relevance": [true]}\n', 1, "not a whole number"),
        ("examples", '{"query": "q", "documents": ["a"], "relevance": [1], "scores": [1, 2]}\n', 1, "have 2 scores"),
        ("examples", '{"query": "q", "documents": ["a"], "relevance": [1], "scores": [NaN]}\n', 1, "must be numbers"),
        ("examples", '{"query": "q", "documents": ["a"], "relevance": [1], "scores": 7}\n', 1, "must be numbers"),
        ("examples", "\n{oops\n", 2, "not a JSON object"),
        ("examples", '{"query": "q"}\n', 1, "documents"),
        ("examples", '["q"]\n', 1, "expected a JSON object"),
    ],
)
def test_malformed_lines_of_training_sources_are_named(
    tmp_path: Path, kind: str, content: str, line: int, message: str
) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        read(**{kind: file(tmp_path, "bad", content)})
    assert caught.value.line == line
    assert f"bad, line {line}:" in str(caught.value)


def test_a_run_must_be_sorted_and_its_documents_known(tmp_path: Path) -> None:
    options = {
        "corpus": file(tmp_path, "c.tsv", "d1\tone\n"),
        "queries": file(tmp_path, "q.tsv", "7\tlow\n8\thigh\n"),
        "qrels": file(tmp_path, "qrels.txt", "7 0 d1 1\n"),
    }
    with pytest.raises(FormatError, match=r"line 3: query '7' appears in two places"):
        read(run=file(tmp_path, "r", "7 d1 1\n8 d1 1\n7 d1 2\n"), **options)
    with pytest.raises(FormatError, match=r"line 1: the corpus has no document 'd9'"):
        read(run=file(tmp_path, "r", "7 d9 1\n"), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tripels": "x"}, "is not a kind of data"),
        ({"triples": "/nowhere/t.tsv"}, "there is no file '/nowhere/t.tsv'"),
        ({"triples": "HERE", "depth": 3}, "no option 'depth'"),
        ({"run": "HERE", "corpus": "HERE"}, "run needs queries"),
        ({"candidates": "HERE", "qrels": "HERE", "depth": "deep"}, "depth is 'deep'; it must be a whole number"),
    ],
)
def test_options_of_training_sources_are_checked(tmp_path: Path, options: dict[str, object], message: str) -> None:
    here = file(tmp_path, "here", "x\n")
    with pytest.raises(ConfigError, match=message):
        open_source({name: here if value == "HERE" else value for name, value in options.items()})


def test_texts_are_looked_up_by_offset(tmp_path: Path) -> None:
    texts = TextFile(Path(file(tmp_path, "c", "\ufeff" + CORPUS + "d3\thttp://x\ta title\tthe body\nd4\tplain\n")))
    expected_texts = ["plain", "Salt lowers nothing", "a title the body"]
    assert [texts.get_document(name).full_text for name in ("d4", "d1", "d3")] == expected_texts
    assert ("d2" in texts, "d5" in texts) == (True, False)


@pytest.fixture
def stores_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file is large enough that its offsets are stored."""
    monkeypatch.setattr(text_files, "MIN_STORED_BYTES", 1)


def look_up(path: Path, text_id: str) -> str:
    return TextFile(path).get_document(text_id).full_text


def test_offsets_of_a_small_collection_are_not_kept(tmp_path: Path) -> None:
    path = Path(file(tmp_path, "c.tsv", "d1\tone\nd2\ttwo\n"))
    assert look_up(path, "d2") == "two"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("stores_offsets")
def test_offsets_of_a_large_collection_are_kept_beside_it(tmp_path: Path) -> None:
    path = Path(file(tmp_path, "c.tsv", "d1\tone\nd2\ttwo\n"))
    offsets = tmp_path / "c.tsv.ids.sqlite"
    assert (look_up(path, "d2"), offsets.exists()) == ("two", True)
    written_at = offsets.stat().st_mtime_ns
    assert (look_up(path, "d1"), offsets.stat().st_mtime_ns) == ("one", written_at)
    path.write_text("d0\tzero, which moves the others\nd1\tone\nd2\ttwo\n")
    assert [look_up(path, name) for name in ("d0", "d2")] == ["zero, which moves the others", "two"]
    path.write_text("d1\tone\nd1\ttwo\n")
    with pytest.raises(FormatError, match="line 2: the id 'd1' appears twice"):
        TextFile(path)


@pytest.mark.usefixtures("stores_offsets")
def test_an_unwritable_folder_only_costs_time_for_offsets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = Path(file(tmp_path, "c.tsv", "d1\tone\n"))
    (tmp_path / "c.tsv.ids.sqlite").mkdir()
    (tmp_path / "c.tsv.ids.sqlite" / "held").touch()
    assert look_up(path, "d1") == "one"
    assert "ids of c.tsv are sorted again on each start" in caplog.text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.tsv", "c.tsv.ids.sqlite"]


@pytest.mark.usefixtures("stores_offsets")
def test_offsets_of_a_changed_collection_are_noticed(tmp_path: Path) -> None:
    path = Path(file(tmp_path, "c.tsv", "d1\tone\nd2\ttwo\n"))
    state = path.stat()
    TextFile(path)
    path.write_text("d2\ttwo\nd1\tone\n")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(
        FormatError, match=r"line 1: this line no longer contains the text of 'd1'; delete c.tsv.ids.sqlite"
    ):
        look_up(path, "d1")


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [("d1\ta\nd1\tb\n", 2, "appears twice"), ("d1\n", 1, "expected JSON"), ('{"text": "x"}\n', 1, "with an id")],
)
def test_a_collection_with_ambiguous_ids_is_refused(tmp_path: Path, content: str, line: int, message: str) -> None:
    with pytest.raises(FormatError, match=message) as caught:
        TextFile(Path(file(tmp_path, "c", content)))
    assert caught.value.line == line
