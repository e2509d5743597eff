"""Conversion of published files to candidates, queries and judgments."""

import json
import re
from pathlib import Path
from typing import Any

import cbor2
import pytest
from click.testing import CliRunner

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.formats.common_layout import flatten_qrels
from osrerank.formats.trec import read_qrels
from osrerank.types import Document, Query
from osrerank_loaders.candidates import join_run_and_texts, read_top1000
from osrerank_loaders.cli import convert
from osrerank_loaders.collections.trec_car_topics import Level, derive_judgments, derive_queries, read_sections
from osrerank_loaders.load.encoding import repair


def write(folder: Path, content: str | bytes, name: str = "file") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


class TestCandidates:
    def test_top1000_files_in_random_order_are_converted(self, tmp_path: Path) -> None:
        rows = "2\t20\tsecond\ttext 20\n1\t10\tfirst\ttext 10\n2\t10\tsecond\ttext 10\n"
        first, second = read_top1000((write(tmp_path, rows),))
        two_documents = [{"doc_id": "20", "text": "text 20"}, {"doc_id": "10", "text": "text 10"}]
        assert first == {"query_id": "2", "query": "second", "candidates": two_documents}
        assert second == {"query_id": "1", "query": "first", "candidates": two_documents[1:]}

    def test_a_run_with_a_collection_is_converted(self, tmp_path: Path) -> None:
        run = "7 Q0 D2 1 3.5 tag\n7\tQ0\tD1\t2\t-1\ttag\n"
        collection = [Document("D1", "one", "title"), Document("D0", "unused"), Document("D2", "two")]
        (group,) = join_run_and_texts((write(tmp_path, run),), {"7": "seven"}, collection)
        second, first = group.pop("candidates")
        assert group == {"query_id": "7", "query": "seven"}
        assert second == {"doc_id": "D2", "text": "two", "score": 3.5}
        assert first == {"doc_id": "D1", "title": "title", "text": "one", "score": -1.0}

    def test_a_submission_with_a_collection_is_converted(self, tmp_path: Path) -> None:
        run = write(tmp_path, "7\tD1\t2\n7\tD2\t1\n")
        collection = [Document("D1", "one"), Document("D2", "two")]
        (group,) = join_run_and_texts((run,), {"7": "seven"}, collection)
        assert [(candidate["doc_id"], candidate["score"]) for candidate in group["candidates"]] == [
            ("D2", 1.0),
            ("D1", 0.5),
        ]
        with pytest.raises(FormatError, match="two documents of query '7' share the rank 1"):
            list(join_run_and_texts((write(tmp_path, "7\tD2\t1\n7\tD1\t1\n"),), {"7": "seven"}, collection))
        with pytest.raises(FormatError, match=r"line 1: expected .*, found 2 columns"):
            list(join_run_and_texts((write(tmp_path, "7 D2\n"),), {"7": "seven"}, collection))

    def test_a_missing_document_or_query_is_named(self, tmp_path: Path) -> None:
        run = (write(tmp_path, "7 Q0 D2 1 3.5 tag\n"),)
        with pytest.raises(CorpusFormatError, match="1 candidates are not in the collection, such as 'D2'"):
            list(join_run_and_texts(run, {"7": "seven"}, [Document("D1", "one")]))
        with pytest.raises(FormatError, match="line 1: query '7' is not in the queries file"):
            list(join_run_and_texts(run, {}, []))
        with pytest.raises(FormatError, match="line 1: expected qid, pid, query, passage, found 1 fields"):
            list(read_top1000(run))

    @pytest.mark.parametrize(
        ("rows", "reason"),
        [
            ("1\ta\tq\tx\n2\ta\tp\tx\n1\ta\tq\tx\n", "query '1' has document 'a' twice; remove one"),
            ("1\ta\tq\tx\n1\tb\tother\ty\n", "query '1' has two texts; remove one"),
            ("", "there are no candidates; is this the right file?"),
        ],
    )
    def test_candidates_that_cannot_be_reranked_are_not_written(self, tmp_path: Path, rows: str, reason: str) -> None:
        with pytest.raises(FormatError, match=re.escape(reason)):
            list(read_top1000((write(tmp_path, rows),)))


PARTS = [
    [1, [0, b"lead", [[0, "Lead."]]]],
    [0, "A/B test", b"A/B%20test", [[1, [0, b"p1", []]], [0, "Deep", b"Deep", [[1, [0, b"p2", []]]]]]],
    [2, "image.png", []],
    [0, "Empty", b"Empty", []],
]
OUTLINES = [[0, "Yin/yang & co", b"Yin/yang%20&%20co", [[0, "Empty", b"Empty", []]]]]
PAGES = [[0, "Yin/yang & co", b"Yin/yang%20&%20co", PARTS]]


class TestTrecCar:
    @pytest.fixture(params=["v1.5", "v2.0"])
    def pages(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        items = b"".join(map(cbor2.dumps, PAGES))
        return write(
            tmp_path, items if request.param == "v1.5" else cbor2.dumps(["CAR", [0]]) + b"\x9f" + items + b"\xff"
        )

    @pytest.mark.parametrize(("items", "command"), [(OUTLINES, "trec-car-qrels"), ([], "trec-car-queries")])
    def test_a_file_without_judgments_or_queries_is_refused(
        self, tmp_path: Path, items: list[Any], command: str
    ) -> None:
        path, output = write(tmp_path, b"".join(map(cbor2.dumps, items))), tmp_path / "output"
        outcome = CliRunner().invoke(convert, [command, path, "-o", str(output)])
        assert f"{path}: there are no" in str(outcome.exception)
        assert not output.exists()

    def test_headings_of_trec_car_come_from_the_outline(self, pages: str) -> None:
        assert list(derive_queries(read_sections([pages]), "hierarchical")) == [
            Query("Yin/yang%20&%20co", "Yin/yang & co"),
            Query("Yin/yang%20&%20co/A/B%20test", "Yin/yang & co A/B test"),
            Query("Yin/yang%20&%20co/A/B%20test/Deep", "Yin/yang & co A/B test Deep"),
            Query("Yin/yang%20&%20co/Empty", "Yin/yang & co Empty"),
        ]
        assert [query.text for query in derive_queries(read_sections([pages]), "toplevel")] == [
            "Yin/yang & co A/B test",
            "Yin/yang & co Empty",
        ]
        assert [query.text for query in derive_queries(read_sections([pages]), "article")] == ["Yin/yang & co"]
        (query,) = derive_queries(read_sections([pages]), "article", style="dl4marco")
        assert query.text == "Yin yang & co"

    def test_judgments_are_converted(self, pages: str, tmp_path: Path) -> None:
        page = "Yin/yang%20&%20co"
        expected: dict[Level, list[tuple[str, str]]] = {
            "hierarchical": [(page, "lead"), (f"{page}/A/B%20test", "p1"), (f"{page}/A/B%20test/Deep", "p2")],
            "toplevel": [(f"{page}/A/B%20test", "p1"), (f"{page}/A/B%20test", "p2")],
            "article": [(page, "lead"), (page, "p1"), (page, "p2")],
        }
        for level, rows in expected.items():
            assert [(row.query_id, row.doc_id) for row in derive_judgments(read_sections([pages]), level)] == rows
            output = tmp_path / level
            CliRunner().invoke(convert, ["trec-car-qrels", pages, "--level", level, "-o", str(output)])
            assert len(output.read_text().splitlines()) == len(rows)

    def test_pages_of_outlines_become_queries_on_request(self, tmp_path: Path) -> None:
        outline = write(tmp_path, cbor2.dumps([0, "Page", b"Page", [[0, "A", b"A", []]]]))
        for arguments, expected in ([], "Page/A\tPage A\n"), (["--pages"], "Page\tPage\nPage/A\tPage A\n"):
            output = tmp_path / "queries.tsv"
            convert_arguments = ["trec-car-queries", outline, "--level", "hierarchical", "-o", str(output), *arguments]
            assert CliRunner().invoke(convert, convert_arguments, catch_exceptions=False).exit_code == 0
            assert output.read_text() == expected
            output.unlink()

    def test_paragraphs_in_place_of_pages_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="item 1 is not a page"):
            list(read_sections([write(tmp_path, cbor2.dumps([0, b"a" * 40, [[0, "text"]]]))]))

    def test_trec_cars_test200_is_converted(self, shared: Path) -> None:
        raw = shared / "trec-car-test200" / "raw"
        sections = read_sections([str(raw / "train.test200.cbor.outlines")])
        section_queries = list(derive_queries(sections, "hierarchical"))
        assert len(section_queries) == 1987
        assert [section_queries[0].query_id, section_queries[9].query_id, section_queries[-1].query_id] == [
            "Hog-dog%20rodeo/Typical%20match",
            "Infield%20fly%20rule/The%20rule/Foul%20balls",
            "Structural%20information%20theory/Visual%20regularity",
        ]
        pages = str(raw / "train.test200.cbor")
        assert len(list(derive_queries(read_sections([pages]), "article"))) == 198
        for level, count in {"hierarchical": 4706, "toplevel": 4702, "article": 4696}.items():
            ours = derive_judgments(read_sections([pages]), level)  # type: ignore[arg-type]  # it is a Level
            assert len(ours) == count
            assert set(ours) == set(flatten_qrels(read_qrels(raw / f"train.test200.cbor.{level}.qrels")))


@pytest.mark.parametrize(
    ("twice", "once"),
    [
        ("caf\u00c3\u00a9 and caf\u00e9", "caf\u00e9 and caf\u00e9"),
        ("\u00e2\u0080\u0099s \u00f0\u009f\u0098\u0080", "\u2019s \U0001f600"),
        ("plain", "plain"),
        ("\u00e2\u0082 broken", None),
        ("\u00ed\u00a0\u0080", None),
        ("\u0420\u00d1\u0192\u0441\u0441\u043a\u0438\u0439", None),
        ("\u00c3\u00a9\u00e9", None),
        ("it\u00e2\u20ac\u2122s, \u00ab na\u00efve \u00bb", "it\u2019s, \u00ab na\u00efve \u00bb"),
        ("\u00c4\u00a7 beside caf\u00c3\u00a9", "\u00c4\u00a7 beside caf\u00e9"),
        ("\u00abCAF\u00c9\u00bb, MARQU\u00c9\u2026", "\u00abCAF\u00c9\u00bb, MARQU\u00c9\u2026"),
        ("\u00c3\u2019 \u4e2d", "\u00c3\u2019 \u4e2d"),
    ],
)
def test_double_encoding_is_repaired_in_the_whole_text_or_not_at_all(twice: str, once: str | None) -> None:
    assert repair(twice) == once


ASKED = {"context": "First.", "qas": [{"id": "q1", "question": " What\n is? ", "answers": []}]}
SQUAD = {"data": [{"title": "Some_title", "paragraphs": [ASKED, {"context": "Second.", "qas": []}]}]}


class TestCommand:
    def run(self, *arguments: str) -> None:
        outcome = CliRunner().invoke(convert, arguments, catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output

    def test_squad_is_converted(self, tmp_path: Path) -> None:
        self.run("squad", write(tmp_path, json.dumps(SQUAD)), "-o", str(tmp_path / "out"))
        rows = [json.loads(line) for line in (tmp_path / "out" / "corpus.jsonl").read_text().splitlines()]
        assert rows[0] == {"id": "Some_title-0", "title": "Some title", "text": "First."}
        assert len(rows) == 2
        assert (tmp_path / "out" / "queries.tsv").read_text() == "q1\tWhat is?\n"
        assert (tmp_path / "out" / "qrels.txt").read_text() == "q1 0 Some_title-0 1\n"

    def test_corpus_queries_judgments_and_candidates_are_converted(self, tmp_path: Path) -> None:
        passages = write(tmp_path, "10\tten\n", "collection.tsv")
        queries_file = write(tmp_path, "1\tone\n", "queries.tsv")
        run = write(tmp_path, "1 Q0 10 1 2.5 x\n", "run")
        judged = write(tmp_path, "1\t0\t10\t1\n", "qrels")
        self.run("corpus", "msmarco-passage", passages, "-o", str(tmp_path / "corpus.jsonl"))
        self.run("queries", queries_file, "-o", str(tmp_path / "q"))
        self.run("qrels", judged, "-o", str(tmp_path / "j"))
        collection = ["--collection", "msmarco-passage", passages]
        self.run("candidates", run, "--queries", queries_file, *collection, "-o", str(tmp_path / "c"))
        assert json.loads((tmp_path / "corpus.jsonl").read_text()) == {"id": "10", "title": "", "text": "ten"}
        assert (tmp_path / "q").read_text() == "1\tone\n"
        assert (tmp_path / "j").read_text() == "1 0 10 1\n"
        assert json.loads((tmp_path / "c").read_text())["candidates"] == [{"doc_id": "10", "text": "ten", "score": 2.5}]

    def test_conversion_repairs_double_encoded_texts_and_keeps_others(self, tmp_path: Path) -> None:
        passages = write(tmp_path, "1\tcaf\u00c3\u00a9\n2\tcaf\u00c3\u00a9\u00e9\n", "collection.tsv")
        arguments = ["corpus", "msmarco-passage", passages, "--repair-encoding", "-o", str(tmp_path / "c")]
        outcome = CliRunner().invoke(convert, arguments)
        texts = [json.loads(line)["text"] for line in (tmp_path / "c").read_text().splitlines()]
        assert texts == ["caf\u00e9", "caf\u00c3\u00a9\u00e9"]
        assert (
            "1 documents contain double-encoded text that cannot be repaired completely, so it is unchanged "
            "(the first is '2')" in outcome.stderr
        )

    def test_a_run_needs_queries_and_a_collection(self, tmp_path: Path) -> None:
        outcome = CliRunner().invoke(convert, ["candidates", "run", "--queries", "q", "-o", str(tmp_path / "c")])
        assert outcome.exit_code == 2
        assert "--queries and --collection go together" in outcome.output
