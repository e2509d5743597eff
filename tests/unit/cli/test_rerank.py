"""The command `osrerank rerank`: its input, its run, interrupted runs, and failed queries."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from osrerank import connect
from osrerank.cli import cli, main
from osrerank.evaluation.side_file import read_options, read_records
from osrerank.evaluation.tradeoff import QueryScores, RerankSetting, derive_ranking
from osrerank.formats.trec import read_run
from tests.rerank_server import Reply, answering, by_length
from tests.workers import TINY

TEXTS = ("the cat sat on the mat", "a dog barked", "rain in spain", "cats and dogs")


@pytest.fixture
def candidates(tmp_path: Path) -> Path:
    documents = [{"doc_id": f"d{n}", "text": text, "score": 10.0 - n} for n, text in enumerate(TEXTS)]
    lines = [{"query_id": f"q{n}", "query": f"cat {n}", "candidates": documents} for n in range(4)]
    lines.append({"query_id": "empty", "query": "nothing", "candidates": []})
    path = tmp_path / "candidates.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def reranked(*arguments: object, model: str = TINY) -> Result:
    return CliRunner().invoke(cli, ["--model", model, "--backend", "onnx", "rerank", *map(str, arguments)])


def test_rerank_writes_the_candidates_in_the_models_order(candidates: Path, tmp_path: Path) -> None:
    output = tmp_path / "mono.run"
    outcome = reranked("--candidates", candidates, "-o", output, "--depth", 3)
    assert outcome.exit_code == 0, outcome.output
    assert "5 queries, 1 of them without hits" in outcome.stderr
    run = read_run(output)
    assert run.name == "mono"
    assert sorted(run.rankings) == ["q0", "q1", "q2", "q3"]
    for ranking in run.rankings.values():
        assert sorted(document.doc_id for document in ranking) == ["d0", "d1", "d2", "d3"]
        assert ranking[-1].doc_id == "d3"  # below the depth
    first = next(read_records(output.with_name("mono.run.jsonl")))
    assert first.fields["stages"][0]["inferences"] == 3
    assert [len(candidate["stages"]) for candidate in first.fields["candidates"]] == [1, 1, 1, 0]


def test_a_submission_file_is_written_without_scoring_again(candidates: Path, tmp_path: Path) -> None:
    output = tmp_path / "mono.run"
    reranked("--candidates", candidates, "-o", output)
    trec, side_file = read_run(output), output.with_name("mono.run.jsonl").read_bytes()
    outcome = reranked("--candidates", candidates, "-o", output, "--format", "msmarco")
    assert "resuming after 5 of 5 queries" in outcome.stderr
    lines = [line.split("\t") for line in output.read_text().splitlines()]
    assert lines == [
        [query_id, document.doc_id, str(rank)]
        for query_id, ranking in trec.rankings.items()
        for rank, document in enumerate(ranking, start=1)
    ]
    assert output.with_name("mono.run.jsonl").read_bytes() == side_file


def test_an_interrupted_run_is_not_resumed_with_changed_candidates(candidates: Path, tmp_path: Path) -> None:
    output = tmp_path / "mono.run"
    reranked("--candidates", candidates, "-o", output)
    candidates.write_text(candidates.read_text().replace("barked", "slept"))
    outcome = reranked("--candidates", candidates, "-o", output)
    assert outcome.exit_code == 1
    assert "is from a run with other options" in str(outcome.exception)


def test_run_corpus_and_queries_give_the_same_order_as_a_candidates_file(candidates: Path, tmp_path: Path) -> None:
    (tmp_path / "first.run").write_text(
        "".join(f"q{q} Q0 d{n} {n + 1} {10 - n} t\n" for q in range(4) for n in range(len(TEXTS)))
    )
    corpus = "".join(json.dumps({"id": f"d{n}", "text": text}) + "\n" for n, text in enumerate(TEXTS))
    (tmp_path / "corpus.jsonl").write_text(corpus)
    (tmp_path / "queries.tsv").write_text("".join(f"q{n}\tcat {n}\n" for n in range(4)))
    first_run, two = tmp_path / "one.run", tmp_path / "two.run"
    reranked("--candidates", candidates, "-o", first_run, "--tag", "t")
    sources = ["--run", "first.run", "--corpus", "corpus.jsonl", "--queries", "queries.tsv"]
    paths = [argument if argument.startswith("--") else tmp_path / argument for argument in sources]
    outcome = reranked(*paths, "-o", two, "--tag", "t")
    assert outcome.exit_code == 0, outcome.output
    assert first_run.read_text() == two.read_text()


def test_failed_queries_are_listed_and_no_run_is_written(candidates: Path, tmp_path: Path) -> None:
    output = tmp_path / "mono.run"
    late = ("--deadline-ms", "0.000001")
    outcome = reranked("--candidates", candidates, "-o", output, *late)
    assert outcome.exit_code == 1
    assert "query q0: " in outcome.stderr
    assert "4 queries failed; " in str(outcome.exception)
    assert not output.exists()
    outcome = reranked("--candidates", candidates, "-o", output, "--skip-failed", *late)
    assert outcome.exit_code == 1
    assert "was written without them" in str(outcome.exception)
    assert output.read_text() == ""


def test_two_sources_of_candidates_and_malformed_passages_are_bad_usage(candidates, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        main(["rerank", "--candidates", str(candidates), "--run", str(candidates), "-o", "out"])
    assert stop.value.code == 2
    assert (
        "pass either --candidates, or --run with --queries and one of --corpus and --index" in capsys.readouterr().err
    )
    for value in ("maxp,3", "maxp,=3", "limit=", "maxp,,"):
        outcome = reranked("--candidates", candidates, "-o", tmp_path / "x.run", "--passages", value)
        assert (outcome.exit_code, "is not NAME=VALUE" in outcome.output) == (2, True)


@pytest.mark.parametrize("blend", ["linear", "rrf"])
def test_a_blend_derived_from_stored_scores_is_the_order_of_a_run(candidates: Path, tmp_path: Path, blend: str) -> None:
    output = tmp_path / "mono.run"
    assert reranked("--candidates", candidates, "-o", output, "--blend", blend, "--blend-weight", "0.5").exit_code == 0
    side_file = tmp_path / "mono.run.jsonl"
    method, weight = read_options(side_file)["blend"]
    assert method == blend
    for record in read_records(side_file):
        scored = QueryScores.from_record(record, (method, weight))
        doc_ids = tuple(candidate["doc_id"] for candidate in record.fields["candidates"])
        assert derive_ranking(scored, RerankSetting(len(doc_ids), uses_blend=True))[0] == doc_ids


def test_rerank_never_overwrites_its_input_and_ends_without_a_model(candidates, tmp_path):
    before = candidates.read_bytes()
    outcome = reranked("--candidates", candidates, "-o", candidates)
    assert outcome.exit_code != 0
    assert "is also an input" in str(outcome.exception)
    assert candidates.read_bytes() == before
    outcome = reranked("--candidates", candidates, "-o", tmp_path / "mono.run", model=str(tmp_path / "no-model"))
    assert "there is no directory" in str(outcome.exception)
    assert sorted(tmp_path.glob("mono.run*")) == []


def test_queries_without_a_deadline_wait_for_a_busy_rerank_server(candidates, tmp_path, monkeypatch):
    monkeypatch.setattr("osrerank.scoring.backends.http.connection.FIRST_WAIT_S", 0.0)
    busy = [Reply({"error": "busy"}, 429)] * 20
    with answering(lambda received: busy.pop() if busy else by_length(received)) as server:
        (tmp_path / "osrerank.toml").write_text(f'[http]\nurl = "{server.url}"\ndialect = "tei"\n')
        monkeypatch.chdir(tmp_path)
        arguments = ["--backend", "http", "rerank", "--candidates", str(candidates), "-o", str(tmp_path / "run")]
        outcome = CliRunner().invoke(cli, arguments)
    assert outcome.exit_code == 0, outcome.output


@pytest.mark.parametrize("options", [(), ("--passages", "maxp"), ("--sentences", "a=0.5")], ids=str)
def test_a_blank_document_ends_no_run_and_stands_below_the_scored(candidates, tmp_path, options):
    lines = candidates.read_text().splitlines()
    candidates.write_text("\n".join([lines[0].replace(TEXTS[2], "..."), *lines[1:]]) + "\n")
    outcome = reranked("--candidates", candidates, "-o", tmp_path / "mono.run", "--blend", "replace", *options)
    assert outcome.exit_code == 0, outcome.output
    assert "partly" not in outcome.stderr
    assert read_run(tmp_path / "mono.run").rankings["q0"][-1].doc_id == "d2"


def test_a_query_whose_text_cannot_be_utf_8_is_reranked(tmp_path):
    candidates = tmp_path / "candidates.jsonl"
    line = {"query_id": "1", "query": "x \ud800", "candidates": [{"doc_id": "a", "text": "x"}]}
    candidates.write_text(json.dumps(line) + "\n")
    outcome = reranked("--candidates", candidates, "-o", tmp_path / "mono.run")
    assert outcome.exit_code == 0, outcome.output


def test_rerank_fails_if_a_query_was_reranked_only_in_part_unless_allowed(candidates, tmp_path, monkeypatch):
    output, qrels = tmp_path / "mono.run", tmp_path / "qrels.txt"
    qrels.write_text("q1 0 d0 1\n")
    lines = candidates.read_text().splitlines()
    candidates.write_text("\n".join([lines[0].replace(TEXTS[2], "refused"), *lines[1:]]) + "\n")
    monkeypatch.chdir(tmp_path)
    arguments = ["--backend", "http", "rerank", "--candidates", str(candidates), "-o", str(output)]
    refusing = Reply({"error": "such a text is refused"}, 422)
    with answering(lambda received: refusing if "refused" in received.body["texts"] else by_length(received)) as server:
        (tmp_path / "osrerank.toml").write_text(f'[http]\nurl = "{server.url}"\ndialect = "tei"\n')
        outcome = CliRunner().invoke(cli, arguments)
        assert outcome.exit_code == 1
        assert "1 query failed, 1 of them only partly reranked (--allow-partial keeps these)" in str(outcome.exception)
        assert not output.exists()
        outcome = CliRunner().invoke(cli, [*arguments, "--allow-partial"])
    assert outcome.exit_code == 0, outcome.output
    assert "5 queries, 1 of them without hits, 1 of them only partly reranked" in outcome.stderr
    assert sorted(read_run(output).rankings) == ["q0", "q1", "q2", "q3"]
    measured = CliRunner().invoke(cli, ["evaluate", str(qrels), str(output)])
    assert measured.exit_code == 0
    assert "contains 1 partly reranked queries; see" in measured.stderr


def test_the_texts_of_a_run_are_read_from_an_index(tmp_path: Path) -> None:
    with connect(f"embedded:{tmp_path / 'data'}") as client:
        for n, text in enumerate(TEXTS):
            client.index(index="notes", id=f"d{n}", body={"title": f"note {n}", "text": text}, refresh=True)
    (tmp_path / "bm25.run").write_text("".join(f"q Q0 d{n} {n + 1} {9 - n} x\n" for n in range(len(TEXTS))))
    (tmp_path / "queries.tsv").write_text("q\tcat\n")
    rows = [{"id": f"d{n}", "title": f"note {n}", "text": text} for n, text in enumerate(TEXTS)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_arguments = ["--run", tmp_path / "bm25.run", "--queries", tmp_path / "queries.tsv"]
    of_file = reranked(*run_arguments, "--corpus", tmp_path / "corpus.jsonl", "-o", tmp_path / "file.run")
    assert of_file.exit_code == 0, of_file.output
    url = ["--url", f"embedded:{tmp_path / 'data'}", "--model", TINY, "--backend", "onnx"]
    all_arguments = [
        str(argument)
        for argument in (*run_arguments, "--index", "notes", "-o", tmp_path / "index.run", "--tag", "file")
    ]
    of_index = CliRunner().invoke(cli, [*url, "rerank", *all_arguments])
    assert of_index.exit_code == 0, of_index.output
    assert (tmp_path / "index.run").read_text() == (tmp_path / "file.run").read_text()
    (tmp_path / "bm25.run").write_text("q Q0 elsewhere 1 9 x\n")
    lacking = CliRunner().invoke(cli, [*url, "rerank", *all_arguments[:-4], "-o", str(tmp_path / "other.run")])
    assert "are not in the index" in str(lacking.exception)


def test_rerank_needs_exactly_one_source_of_texts(tmp_path: Path) -> None:
    for name in ("run", "queries", "corpus"):
        (tmp_path / name).write_text("q Q0 a 1 9 x\n")
    files = [part for name in ("run", "queries", "corpus") for part in (f"--{name}", tmp_path / name)]
    outcome = reranked(*files, "--index", "notes", "-o", tmp_path / "x.run")
    assert "pass either --candidates, or --run with --queries and one of --corpus and --index" in str(outcome.exception)
