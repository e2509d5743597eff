"""Errors of the loaders' commands."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank.cli import main
from osrerank_loaders.cli import index


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(list(arguments))
    return int(stop.value.code or 0), capsys.readouterr().err


def test_a_missing_file_and_an_absent_server_are_errors_of_one_sentence(capsys, tmp_path):
    code, error = run(capsys, "index", "jsonl", "nowhere.jsonl", "--index", "i", "--url", "http://127.0.0.1:9")
    assert (code, error) == (1, "Error: nowhere.jsonl: no such file or folder\n")
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "1", "text": "x"}\n')
    url = ["--url", "http://127.0.0.1:9", "--give-up-s", "0.1"]
    code, error = run(capsys, "index", "jsonl", str(path), "--index", "i", *url)
    assert code == 1
    assert error.startswith("Error: the search engine has not responded for 0.1 s (")
    assert error.endswith("run the same command again to continue\n")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("index msmarco x --index i", "msmarco-v2-passage"),
        (
            "download trec-car-test200 --only other",
            "trec-car-test200 has no file 'other' to download with --only; its files are test200",
        ),
    ],
)
def test_an_unknown_loader_is_bad_usage(capsys: pytest.CaptureFixture[str], arguments: str, said: str) -> None:
    code, error = run(capsys, *arguments.split())
    assert (code, said in error) == (2, True)


def test_a_users_own_collection_keeps_the_engines_similarity_without_a_warning(tmp_path: Path) -> None:
    corpus, passages = tmp_path / "corpus.jsonl", tmp_path / "collection.tsv"
    corpus.write_text('{"id": "1", "text": "x"}\n')
    passages.write_text("1\tx\n")
    url = ["--url", f"embedded:{tmp_path / 'engine'}"]

    def indexed(*arguments: object) -> str:
        outcome = CliRunner().invoke(index, [str(argument) for argument in arguments] + url)
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    assert "similarity" not in indexed("jsonl", corpus, "--index", "own")
    assert "asks for BM25 at k1=1.5" in indexed("jsonl", corpus, "--index", "asked", "--k1", "1.5")
    assert "asks for BM25 at k1=0.82" in indexed("msmarco-passage", passages, "--index", "published")
    assert "1 documents in the index" in indexed("jsonl", corpus, "--index", "own")  # the same load again


def test_a_refused_load_names_the_engine(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text(f'{{"id": "{"x" * 600}", "text": "y"}}\n')
    index_arguments = ["--index", "i", "--url", f"embedded:{tmp_path / 'engine'}"]
    code, error = run(capsys, "index", "jsonl", str(tmp_path / "corpus.jsonl"), *index_arguments)
    assert code == 1
    assert error.startswith("Error: the embedded engine rejected 1 documents; the first is ")
