"""Passages of documents as training data, as in the papers."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from osrerank.cli import main
from osrerank.errors import FormatError
from osrerank.formats.candidates import candidate_lists
from osrerank.formats.sources import open_sources
from osrerank.options.passages import Passages
from osrerank.options.rerank import Rerank
from osrerank.search.rerank_only import rerank_texts
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank.training.documents import create_passage_triples, split_document
from osrerank.training.examples.example import Example, read_examples, write_examples
from osrerank.training.examples.sources import open_source
from osrerank_loaders.candidates import join_run_and_texts, write_candidates
from osrerank_loaders.collections.base import read_records
from osrerank_loaders.collections.registry import LOADERS

WORDS = " ".join(f"w{number}" for number in range(95))
DOCUMENTS = {
    "D1": ("", ""),
    "D2": ("Only a title", ""),
    "D3": ("", "a body of no title"),
    "D4": ("Salt", "low salt"),
    "D5": ("Salt and pressure", WORDS),
    "D6": ("", WORDS),
    "D7": ("A title of more words than a window has, and one that no window may push aside", WORDS),
    "D8": (" Spaces  around ", f"  {WORDS}  ---------- spaces   within "),
    "D9": ("w0 w1", f"w0 w1 {WORDS}"),
    "D10": ("\u00c9tude \u2013 \u4e2d\u6587", "\u00e9tude \u4e2d\u6587 " * 30),
}
OPTIONS = [
    Passages(),
    Passages(words=20, stride=10),
    Passages(words=20, stride=10, limit=4),
    Passages("firstp", words=20, stride=10),
    Passages(words=20, stride=10, limit=4, policy="sampled", seed=3),
    Passages(words=20, stride=20, least_words=12),
]


@pytest.fixture
def official(tmp_path: Path) -> dict[str, str]:
    """MS MARCO's document files: ``docid TAB url TAB title TAB body``, and a top-100 file, queries and judgments."""
    lines = "".join(f"{doc_id}\thttp://x/{doc_id}\t{title}\t{body}\n" for doc_id, (title, body) in DOCUMENTS.items())
    (tmp_path / "msmarco-docs.tsv").write_text(lines, encoding="utf-8")
    run = "".join(
        f"7 Q0 {doc_id} {rank} {-rank / 10} IndriQueryLikelihood\n" for rank, doc_id in enumerate(DOCUMENTS, 1)
    )
    packed = {
        "run": ("msmarco-doctrain-top100.gz", run),
        "queries": ("msmarco-doctrain-queries.tsv.gz", "7\tlow salt\n8\tnever asked\n"),
        "qrels": ("msmarco-doctrain-qrels.tsv.gz", "7 0 D5 1\n"),
    }
    for name, content in packed.values():
        (tmp_path / name).write_bytes(gzip.compress(content.encode()))
    files = {option: str(tmp_path / name) for option, (name, _content) in packed.items()}
    return {"run": files["run"], "corpus": str(tmp_path / "msmarco-docs.tsv"), **files}


def searched(documents: list[Any], options: Passages) -> dict[str, list[str]]:
    """The texts that a model is given of each document."""
    found = {}
    for document in documents:
        seen: list[str] = []
        service = RerankService(
            Settings.load(), FunctionScorer(lambda _query, text, seen=seen: seen.append(text) or 0.0)
        )
        rerank_texts(service, Rerank(), "low salt", [document], rerank=Rerank(passages=options))
        found[document["id"]] = seen or [""]  # a blank document is not scored
    return found


def candidates_of(official: dict[str, str], folder: Path) -> Path:
    """The file that `osrerank convert candidates` makes of the same files."""
    records = read_records(LOADERS["msmarco-document"], open_sources([official["corpus"]]))
    groups = join_run_and_texts((official["run"],), {"7": "low salt"}, records)
    write_candidates(groups, folder / "candidates.jsonl")
    return folder / "candidates.jsonl"


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_prepared_training_passages_are_reproducible(options, official, tmp_path):
    from osrerank.training.development import DevelopmentSet  # imports torch

    candidates = candidates_of(official, tmp_path)
    (listed,) = candidate_lists(candidates)
    inference = searched(list(listed.documents), options)
    assert list(inference) == list(DOCUMENTS)
    (training,) = open_source(official).read()
    (developed,) = open_source({"candidates": str(candidates), "qrels": official["qrels"]}).read()
    cut = DevelopmentSet([developed], "RR@10", passages=options).split_documents(developed)
    for place, (doc_id, expected) in enumerate(inference.items()):
        assert split_document(training, place, options) == expected, doc_id
        assert cut[place] == expected, doc_id
    write_examples(tmp_path / "examples.jsonl", [training])
    (again,) = read_examples(tmp_path / "examples.jsonl")
    assert [split_document(again, index, options) for index in range(10)] == list(inference.values())


def test_the_official_files_become_triples_of_passages(official: dict[str, str], tmp_path: Path) -> None:
    data = ",".join(f"{name}={path}" for name, path in official.items())
    made = tmp_path / "made.jsonl"
    for passage_options, windows in (
        ((), 2),
        (("words=20,stride=10,limit=40",), 10),
        (("words=20,stride=10,limit=3",), 3),
    ):
        main(["train", "data", str(made), "--data", data, "--passages", *passage_options])
        rows = [json.loads(line) for line in made.read_text(encoding="utf-8").splitlines()]
        assert len(rows) == windows
        assert all(row["documents"][0].startswith("Salt and pressure w") for row in rows)
        assert {row["query"] for row in rows} == {"low salt"}
        assert all("titles" not in row for row in rows)


def test_sampling_training_passages_needs_document_ids() -> None:
    example = Example("q", ("a b c d",), (1,), "here, line 7")
    with pytest.raises(FormatError, match="here, line 7: policy=sampled draws by document ids, and the example"):
        split_document(example, 0, Passages(words=1, stride=1, policy="sampled"))
    assert not list(create_passage_triples([example], Passages()))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"titles": ["Salt"]}, "the text of document 1 must begin with its title, 'Salt'"),
        ({"titles": ["a", "b"]}, "1 documents have 2 titles"),
        ({"titles": "a"}, "titles must be texts"),
        ({"doc_ids": [7]}, "doc_ids must be texts"),
        ({"missed": -1}, "missed is -1; it must be a whole number from 0 on"),
    ],
)
def test_bad_titles_and_ids_of_training_documents_are_named(
    fields: dict[str, object], said: str, tmp_path: Path
) -> None:
    (tmp_path / "e.jsonl").write_text(json.dumps({"query": "q", "documents": ["a"], "relevance": [1], **fields}))
    with pytest.raises(FormatError, match=rf"line 1: {said}"):
        list(read_examples(tmp_path / "e.jsonl"))
