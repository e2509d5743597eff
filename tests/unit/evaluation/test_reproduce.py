"""A model's run compared with published values, on the same candidates."""

import hashlib
import json
from pathlib import Path
from types import MappingProxyType

import pytest
from click.testing import CliRunner

from osrerank.cli import cli, main
from osrerank.errors import ChecksumError, EvaluationError
from osrerank.evaluation.published import COLLECTIONS, Collection, PublishedFile, PublishedValue
from osrerank.evaluation.reproduce import BM25, compare_with_published, find_materials, truncate_candidates
from osrerank.types import Run, ScoredDocument
from tests.servers import ROOT

QRELS = "".join(f"q{n} 0 b 1\n" for n in range(4))
CANDIDATES = "".join(
    json.dumps(
        {
            "query": {"qid": f"q{n}", "text": "red fox"},
            "candidates": [
                {"docid": "a", "score": 2.0, "doc": {"contents": "an old dog"}},
                {"docid": "b", "score": 1.0, "doc": {"contents": "a red fox"}},
            ],
        }
    )
    + "\n"
    for n in range(4)
)
COLLECTION = Collection(
    "small",
    "Small",
    4,
    PublishedFile("qrels", "https://a.example/qrels", len(QRELS), hashlib.md5(QRELS.encode()).hexdigest()),
    MappingProxyType(
        {
            100: PublishedFile(
                "top100.jsonl", "https://a.example/top100", sha256=hashlib.sha256(CANDIDATES.encode()).hexdigest()
            ),
            1000: PublishedFile("top1000.jsonl", "https://a.example/top1000"),
        }
    ),
    PublishedValue("BM25", 0.6309, "https://a.example/bm25"),
    (PublishedValue("others", 0.8, "https://a.example/others"),),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "judgments-of-nist").write_text(QRELS)
    (tmp_path / "top100.jsonl").write_text(CANDIDATES)
    return tmp_path


def run_of(name: str, *doc_ids: str, queries: int = 4) -> Run:
    documents = tuple(ScoredDocument(doc_id, -float(rank)) for rank, doc_id in enumerate(doc_ids))
    return Run({f"q{n}": documents for n in range(queries)}, name)


def test_judgments_are_known_by_their_checksum_and_candidates_by_their_name(folder: Path) -> None:
    materials = find_materials(folder, COLLECTION, 100)
    assert [path.name for path in materials.files] == ["top100.jsonl", "judgments-of-nist"]
    assert materials.qrels.judgments["q0"] == {"b": 1}
    bm25, candidates = truncate_candidates(materials.candidates, 1)
    assert [one.doc_id for one in bm25.rankings["q3"]] == ["a"]
    assert [len(candidate.documents) for candidate in candidates] == [1] * 4


def test_reproduce_accepts_a_run_with_corpus_and_queries(folder: Path) -> None:
    (folder / "top100.jsonl").unlink()
    (folder / "runs").mkdir()
    (folder / "runs" / "BM25.txt").write_text("".join(f"q{n} Q0 a 1 2 x\nq{n} Q0 b 2 1 x\n" for n in range(4)))
    (folder / "corpus.jsonl").write_text('{"id": "a", "text": "an old dog"}\n{"id": "b", "text": "a red fox"}\n')
    (folder / "queries.tsv").write_text("".join(f"q{n}\tred fox\n" for n in range(4)))
    bm25, _candidates = truncate_candidates(find_materials(folder, COLLECTION, 100).candidates, 100)
    assert [candidate.doc_id for candidate in bm25.rankings["q0"]] == ["a", "b"]


def test_reproduce_names_missing_files_with_address_and_checksum(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError) as refusal:
        find_materials(tmp_path, COLLECTION, 100)
    message = str(refusal.value)
    assert f"top100.jsonl from https://a.example/top100 (SHA-256 {COLLECTION.candidates[100].sha256})" in message
    assert f"qrels from https://a.example/qrels (MD5 {COLLECTION.qrels.md5})" in message
    assert f"osrerank download small --output {tmp_path}" in message


def test_reproduce_refuses_a_file_with_another_checksum(folder: Path) -> None:
    (folder / "top100.jsonl").write_text(CANDIDATES + "\n")
    with pytest.raises(ChecksumError, match=r"top100\.jsonl is not the published file: its SHA-256 is"):
        find_materials(folder, COLLECTION, 100)


def test_the_model_stands_beside_published_values_on_the_same_candidates(folder: Path) -> None:
    materials = find_materials(folder, COLLECTION, 100)
    bm25, _candidates = truncate_candidates(materials.candidates, 100)
    comparison = compare_with_published(
        COLLECTION, 100, materials.qrels, bm25, run_of("ours", "b", "a"), [run_of("theirs", "b")]
    )
    assert comparison.has_published_candidates
    assert comparison.published == COLLECTION.values
    assert {name: round(value, 4) for name, value in comparison.values.items()} == {
        "ours": 1.0,
        BM25: 0.6309,
        "theirs": 1.0,
    }
    first, second = comparison.comparisons
    assert (first.baseline, first.run, first.wins, first.losses) == (BM25, "ours", 4, 0)
    assert first.difference == pytest.approx(0.3691, abs=1e-4)
    assert (second.baseline, second.ties) == ("theirs", 4)
    assert json.loads(json.dumps(comparison.as_json()))["published"][0]["system"] == "others"


def test_unpublished_candidates_and_depths_have_no_published_values(folder: Path) -> None:
    materials = find_materials(folder, COLLECTION, 100)
    for bm25, depth in ((run_of(BM25, "b", "a"), 100), (run_of(BM25, "a", "b", queries=3), 100)):
        comparison = compare_with_published(COLLECTION, depth, materials.qrels, bm25, run_of("ours", "b"), [])
        assert (comparison.has_published_candidates, comparison.published) == (False, ())
    comparison = compare_with_published(
        COLLECTION, 1000, materials.qrels, run_of(BM25, "a", "b"), run_of("ours", "b"), []
    )
    assert (comparison.has_published_candidates, comparison.published) == (True, ())


def test_the_reproduce_command_names_missing_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "dl20", str(tmp_path / "nowhere")])
    assert (
        "2020qrels-pass.txt from https://trec.nist.gov/data/deep/2020qrels-pass.txt (MD5 0355"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["dl19", "dl21"])
def test_reproduce_ranks_the_published_candidates(name: str, tmp_path: Path) -> None:
    data = ROOT.parent / "shared" / "data" / f"msmarco-{name}"
    if not data.is_dir():
        pytest.skip(f"{data} is not there")
    arguments = ["--json", "--model", "osrerank/minilm-l6", "reproduce", name, str(data), "-o", str(tmp_path / "x.run")]
    outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output
    content = json.loads(outcome.stdout)
    assert content["same_candidates"]
    assert content["queries"] == COLLECTIONS[name].n_queries
    assert content["values"]["osrerank/minilm-l6"] > content["values"]["BM25"] + 0.1
    assert content["comparisons"][0]["p_t_holm"] < 0.001


def test_published_values_are_sorted_and_have_an_address() -> None:
    for collection in COLLECTIONS.values():
        values = [value.value for value in collection.values]
        assert values == sorted(values)
        assert all(one.source.startswith("https://") for one in (collection.bm25, *collection.values))
