"""The commands `osrerank train`, `distill` and `pretrain`: preparation of data, options, and starts."""

import json
from pathlib import Path

import pytest

from osrerank.cli import main
from osrerank.scoring.card_file import read_card
from osrerank.scoring.model_files import SHIPPED
from osrerank.scoring.registry import load_scorer
from tests.servers import ROOT

MODEL = ROOT / "tests" / "data" / "tiny-bert-two-labels"


def run(*arguments: object) -> int:
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.jsonl"
    line = {"query": "low", "documents": ["the wing " * 200, "salt " * 300, "heat"], "relevance": [0, 1, 0]}
    path.write_text(json.dumps(line) + "\n")
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_train_prepares_passages_filtered_by_a_model(examples: Path, tmp_path: Path) -> None:
    data = f"examples={examples}"
    assert run("train", "data", tmp_path / "whole.jsonl", "--data", data, "--passages") == 0
    whole_examples = read(tmp_path / "whole.jsonl")
    assert len(whole_examples) == 4  # windows of 150 words, each 75 behind the last, of 300 words
    command = ("train", "data", tmp_path / "kept.jsonl", "--data", data, "--passages", "--filter", MODEL, "--keep", 2)
    assert run(*command) == 0
    kept_examples = read(tmp_path / "kept.jsonl")
    assert len(kept_examples) == 2
    assert {example["documents"][0] for example in kept_examples} <= {
        example["documents"][0] for example in whole_examples
    }
    assert all(example["relevance"] == [1, 0] for example in kept_examples)


def test_train_prepares_the_hardest_negatives(examples: Path, tmp_path: Path) -> None:
    command = ("train", "data", tmp_path / "hard.jsonl", "--data", f"examples={examples}", "--hardest", MODEL)
    assert run(*command, "--keep", 1) == 0
    (example,) = read(tmp_path / "hard.jsonl")
    assert example["relevance"] == [1, 0]


def test_train_prepares_a_teachers_scores(examples: Path, tmp_path: Path) -> None:
    command = ("train", "data", tmp_path / "scored.jsonl", "--data", f"examples={examples}", "--score", MODEL)
    assert run(*command) == 0
    (scored_example,), (example,) = read(tmp_path / "scored.jsonl"), read(examples)
    documents = example["documents"]
    values = load_scorer(MODEL).score(example["query"], documents, [(index,) for index in range(len(documents))]).values
    assert scored_example == {**example, "scores": [pytest.approx(float(value), abs=1e-4) for value in values]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("data OUT", "pass exactly one of --data, --index and --squad"),
        ("data OUT --index notes", "--index needs --queries and --qrels"),
        ("data OUT --data examples=IN --filter m", "also pass --passages"),
        ("data OUT --data examples=IN --passages auto", "auto works only in searches"),
        ("mono --init-from MODEL --data examples=IN --output OUT --recipe monobart", "monobart"),
        ("mono --init-from MODEL --data tripels=IN --output OUT", "is not a kind of data"),
        ("mono --init-from MODEL --data examples=IN --output MODEL", "exists"),
        ("mono --init-from MODEL --data examples=IN --output OUT --recipe rate=fast", "rate"),
    ],
)
def test_train_refuses_unusable_options_as_bad_usage(arguments, said, examples, tmp_path, capsys):
    pytest.importorskip("torch")
    places = {"IN": str(examples), "OUT": str(tmp_path / "out"), "MODEL": str(MODEL)}
    train_arguments = [places.get(part, part.replace("=IN", f"={examples}")) for part in arguments.split()]
    assert run("train", *train_arguments) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_distill_and_pretrain_need_exactly_one_start(examples, tmp_path, capsys):
    command = ("distill", "--init-from", MODEL, "--data", f"examples={examples}", "--output", tmp_path / "out")
    assert run(*command) == 2
    assert "pass --layers, --student or both" in capsys.readouterr().err
    assert run(*command, "--layers", 1, "--student", MODEL) == 2
    assert "--layers is 1, but with --student it must list the teacher" in capsys.readouterr().err
    assert run(*command, "--layers", "2,1") == 2
    assert "does not list layers in ascending order, beginning with 1 or above" in capsys.readouterr().err
    assert run(*command, "--layers", "all") == 2
    assert "'all' is neither a number of layers" in capsys.readouterr().err
    command = ("pretrain", "--corpus", examples, "--output", tmp_path / "out")
    assert run(*command) == 2
    assert "pass either --init-from or --new" in capsys.readouterr().err
    pytest.importorskip("torch")
    assert run(*command, "--new", "depth=2") == 2
    assert "--new has no option 'depth'; its options are layers" in capsys.readouterr().err


@pytest.mark.long
def test_a_training_starts_from_the_model_in_the_package(examples: Path, tmp_path: Path) -> None:
    recipe = "modern,steps=1,batch=2,negatives=1,max_tokens=72,rate=1e-5,evaluate_every=1,freeze=embeddings"
    development = ("--dev", f"examples={examples}", "--dev-passages", "kmaxavgp,k=2")
    data = ("--data", f"examples={examples}", *development, "--recipe", recipe)
    assert run("train", "mono", "--init-from", "osrerank/e5-small", *data, "--output", tmp_path / "tuned") == 0
    assert run("train", "average", tmp_path / "tuned", "osrerank/e5-small", "--output", tmp_path / "ours") == 0
    card, start = read_card(tmp_path / "ours"), read_card(SHIPPED / "e5-small")
    of_training = {"name", "provenance", "onnx", "max_tokens", "max_query_tokens"}
    kept_entries = [
        {name: part for name, part in value.to_json().items() if name not in of_training} for value in (card, start)
    ]
    assert kept_entries[0] == kept_entries[1]
    assert card.provenance["base_model"] == "osrerank/e5-small"
    assert [part["model"] for part in card.provenance["average_of"]] == ["tuned", "osrerank/e5-small"]
    documents = ["low blood pressure is caused by dehydration", "the wing of the engine"]
    ours, theirs = (
        load_scorer(str(model), backend="torch").score("low pressure", documents, [(0,), (1,)]).values
        for model in (tmp_path / "ours", "osrerank/e5-small")
    )
    assert 0 < abs(ours - theirs).max() < 0.5  # one small step; the two documents are 9 apart
