"""TREC-CAR's queries and judgments fit together: a run of all that is relevant has a MAP of 1 over all of them."""

from pathlib import Path

import cbor2
import pytest
from click.testing import CliRunner

from osrerank.cli.evaluate import evaluate
from osrerank.formats.topics import read_queries
from osrerank.formats.trec import read_qrels
from osrerank_loaders.cli import convert


def lead(paragraph_id: str) -> list[object]:
    return [1, [0, paragraph_id.encode(), [[0, "A lead paragraph."]]]]


def page(name: str, skeleton: list[object]) -> list[object]:
    """A page of version 2.0: six items, its id with the Wiki's name."""
    return [0, name, f"enwiki:{name}".encode(), skeleton, [0], []]


PAGES = [
    page("Only", [lead("a" * 40)]),
    page("Both", [lead("b" * 40), [0, "Part", b"Part", [lead("c" * 40)]]]),
    page("Parts", [[0, "Yin/yang", b"Yin/yang", [lead("d" * 40)]]]),
]


@pytest.fixture
def v2(tmp_path: Path) -> Path:
    """A file of version 2.0: its header, a list without a length."""
    path = tmp_path / "pages.cbor"
    path.write_bytes(cbor2.dumps(["CAR", [0], "v2.0"]) + b"\x9f" + b"".join(map(cbor2.dumps, PAGES)) + b"\xff")
    return path


def converted(pages: Path, folder: Path) -> tuple[Path, Path]:
    """The queries and judgments that the commands make of a page file."""
    made = folder / "queries.tsv", folder / "qrels.txt"
    for command, output in zip(("trec-car-queries", "trec-car-qrels"), made, strict=True):
        outcome = CliRunner().invoke(convert, [command, str(pages), "-o", str(output)], catch_exceptions=False)
        assert outcome.exit_code == 0
    return made


def perfect(qrels: Path, query_ids: set[str], run: Path) -> str:
    """Write a run of all that is relevant to some queries; return what the command says of it."""
    judgments = read_qrels(qrels).judgments
    lines = [
        f"{query_id} Q0 {doc_id} {rank} {1 / rank:.6f} perfect\n"
        for query_id, judged in judgments.items()
        if query_id in query_ids
        for rank, doc_id in enumerate(judged, start=1)
    ]
    run.write_text("".join(lines), encoding="utf-8")
    arguments = [str(qrels), str(run), "-m", "AP@1000", "--complete"]
    outcome = CliRunner().invoke(evaluate, arguments, obj={"as_json": False}, catch_exceptions=False)
    assert outcome.exit_code == 0
    return outcome.output


def test_pages_without_headings_are_asked_and_judged(v2: Path, tmp_path: Path) -> None:
    queries, qrels = converted(v2, tmp_path)
    asked = {query.query_id: query.text for query in read_queries(queries)}
    assert asked == {
        "enwiki:Only": "Only",
        "enwiki:Both": "Both",
        "enwiki:Both/Part": "Both Part",
        "enwiki:Parts/Yin/yang": "Parts Yin/yang",
    }
    assert set(read_qrels(qrels).judgments) == set(asked)
    assert "1.0000" in perfect(qrels, set(asked), tmp_path / "perfect.run")
    assert "0.5000" in perfect(qrels, {one for one in asked if one.count("/")}, tmp_path / "headings.run")


def test_a_perfect_run_of_test200(shared: Path, tmp_path: Path) -> None:
    queries, qrels = converted(shared / "trec-car-test200" / "raw" / "train.test200.cbor", tmp_path)
    asked = {query.query_id for query in read_queries(queries)}
    assert "1.0000" in perfect(qrels, asked, tmp_path / "perfect.run")


def test_pages_are_a_corpus_to_pretrain_on(v2: Path, tmp_path: Path) -> None:
    """Half of Wikipedia, as Nogueira and Cho pre-trained for TREC-CAR."""
    pytest.importorskip("torch")
    from osrerank.training.pretrain import learnt_tokenizer, read_texts

    corpus = tmp_path / "pages.jsonl"
    arguments = ["corpus", "trec-car-pages", str(v2), "-o", str(corpus)]
    assert CliRunner().invoke(convert, arguments, catch_exceptions=False).exit_code == 0
    texts = list(read_texts([corpus]))
    assert texts[1] == "Both A lead paragraph.\nA lead paragraph."
    assert learnt_tokenizer(texts, 60).encode("a lead paragraph").tokens
