"""Birch's released predictions: the formula by hand, the command with folds, files that do not belong together."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import FormatError
from osrerank.evaluation.birch import read_predictions
from osrerank.evaluation.tune import Weights

DATASET = [  # label, first pass, query, sentence, query id, sentence id, query id, running id
    "0\t4.5\ta query\tFirst.\t301\tAP_88-1_0\t301\t0",
    "0\t4.5\ta query\tSecond.\t301\tAP_88-1_1\t301\t1",
    '1\t6.25\ta query\tA "quote.\t301\tFT-2_0\t301\t2',
    "1\t6.25\ta query\t\t301\tFT-2_1\t301\t3",
    "1\t6.25\ta query\tThird.\t301\tFT-2_2\t301\t4",
    "1\t6.25\ta query\tFourth.\t301\tFT-2_3\t301\t5",
    "0\t1.0\tother\tOnly.\t302\tFT-2_0\t302\t6",
    "0\t0.5\tother\tNot predicted.\t302\tFT-9_0\t302\t7",
]
PREDICTIONS = [
    "301 Q0 0 1 -1.5 bert",
    "301 Q0 1 2 2.0 bert",
    "301 Q0 3 3 0.25 bert",
    "301 Q0 2 4 -3.0 bert",
    "301 Q0 5 5 1.75 bert",
    "301 Q0 4 6 -0.5 bert",
    "302 Q0 6 7 -2e-1 bert",
]


def write(folder, dataset=DATASET, predictions=PREDICTIONS):
    paths = folder / "predict.mb", folder / "robust04_5cv.csv"
    for path, lines in zip(paths, (predictions, dataset), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def test_best_sentences_in_first_pass_order(tmp_path):
    first, second = read_predictions(*write(tmp_path))
    assert (first.query_id, first.doc_ids) == ("301", ("FT-2", "AP_88-1"))
    assert first.first_pass.tolist() == [6.25, 4.5]
    assert np.array_equal(first.best, [[1.75, 0.25, -0.5], [2.0, -1.5, np.nan]], equal_nan=True)
    assert (second.query_id, second.doc_ids) == ("302", ("FT-2", "FT-9"))
    assert np.array_equal(second.best, [[-0.2, np.nan, np.nan], [np.nan] * 3], equal_nan=True)
    # .2 * 6.25 + .8 * (1.75 + .5 * .25) = 2.75; .2 * 4.5 + .8 * (2 - .75) = 1.9; without the second: 2.65 and 2.5
    assert first.order(Weights(second=0.5, a=0.2, third=0.0)).tolist() == [0, 1]
    assert first.order(Weights(second=0.0, a=0.1, third=0.0)).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("which", "place", "line", "said"),
    [
        ("dataset", 1, "0\t4.5\tquery\t301\tAP_1_0\t301\t1", "line 2: expected the 8 fields of Birch's dataset"),
        ("dataset", 1, "0\tx\ta\tb\t301\tAP_88-1_1\t301\t1", "line 2: the first-pass score 'x'"),
        ("dataset", 1, "0\t4.6\ta\tb\t301\tAP_88-1_1\t301\t1", "line 2: .* has two first-pass scores, 4.5 and 4.6"),
        ("dataset", 1, "0\t4.5\ta\tb\t301\tAP\t301\t1", "line 2: the sentence's id 'AP' is not DOCID_NUMBER"),
        ("dataset", 1, "0\t4.5\ta\tb\t301\tAP_88-1_1\t301\t0", "line 2: the running id 0 comes twice"),
        ("dataset", 1, "0\t4.5\ta\tb\t301\tAP_88-1_1\t301\t-1", "line 2: the running id '-1' is not"),
        ("predictions", 2, "301 Q0 3 3 0.25", "line 3: expected `query_id Q0 running_id line logit bert`, found 5"),
        ("predictions", 2, "301 Q0 3 3 nan bert", "line 3: the logit 'nan' is not a finite number"),
        ("predictions", 2, "301 Q0 0 3 0.25 bert", "line 3: the running id 0 comes twice"),
        ("predictions", 2, "301 Q0 99 3 0.25 bert", "line 3: .*robust04_5cv.csv has no sentence with .* id 99"),
        ("predictions", 2, "302 Q0 3 3 0.25 bert", "line 3: sentence 3 is of query 301 in .*, not of 302"),
    ],
)
def test_bad_lines_are_named(tmp_path, which, place, line, said):
    lines = {"dataset": list(DATASET), "predictions": list(PREDICTIONS)}
    lines[which][place] = line
    with pytest.raises(FormatError, match=said) as caught:
        read_predictions(*write(tmp_path, **lines))
    assert caught.value.line == place + 1


def as_birch_writes(name, topics, documents):
    """The dataset's and the predictions' lines, in the form of the released code for a collection.

    Of each topic's documents the last has the best sentence. Robust04's five folds repeat the topic's id and count
    sentences from 0; the Core collections number topics and sentences from 1. Predictions come shuffled.
    """
    dataset, predictions = [], []
    for place, topic in enumerate(topics, start=1):
        query, first = (topic, 0) if name == "robust04" else (place, 1)
        for rank, document in enumerate(documents):
            for sentence in range(2):
                running = len(dataset) + first
                score = round(10 - rank / 3, 11 if name == "robust04" else 16)
                fields = [int(rank > 0), score, f"query {topic}", "A sentence.", topic, f"{document}_{sentence}"]
                dataset.append("\t".join(map(str, [*fields, query, running])))
                predictions.append(f"{query} Q0 {running} {running} {rank - sentence} bert")
    return dataset, predictions[::-1]


@pytest.mark.parametrize(
    ("name", "documents"),
    [
        ("robust04", ["FBIS3-1", "LA_2", "FT911-3"]),
        ("core17", ["1736", "240", "99"]),
        ("core18", ["9171debc316e5e2782e0d2404ca7d09d", "b2e89334-33f9-11e1-825f-dabc29fd7071", "x_1"]),
    ],
)
def test_each_collections_queries_are_found_as_birchs_code_numbers_them(tmp_path, name, documents):
    topics = ["321", "336", "1", "347"]  # "1" is also the number of 321
    found = read_predictions(*write(tmp_path, *as_birch_writes(name, topics, documents)))
    assert [one.query_id for one in found] == topics
    for one in found:
        assert one.doc_ids == tuple(documents)
        assert one.best[:, :2].tolist() == [[0.0, -1.0], [1.0, 0.0], [2.0, 1.0]]


def test_a_number_of_two_queries_is_refused(tmp_path):
    dataset, predictions = as_birch_writes("core17", ["307", "310"], ["a"])
    dataset[3] = dataset[3].replace("\t2\t4", "\t1\t4")
    with pytest.raises(FormatError, match="line 4: column 7 gives queries 307 and 310 the same number, 1"):
        read_predictions(*write(tmp_path, dataset, predictions))


@pytest.mark.parametrize(("name", "lacking"), [("dataset", "no sentence"), ("predictions", "no prediction")])
def test_empty_files_are_refused(tmp_path, name, lacking):
    with pytest.raises(FormatError, match=lacking):
        read_predictions(*write(tmp_path, **{name: []}))


def test_command_learns_from_them(tmp_path):
    """Ten queries whose relevant document has the best sentence and the lowest first-pass score."""
    topics = list("0123456789")
    predicted, known = write(tmp_path, *as_birch_writes("robust04", topics, ["d0", "d1", "d2"]))
    judged, folds, output = tmp_path / "qrels", tmp_path / "folds.json", tmp_path / "birch.run"
    judged.write_text("".join(f"{topic} 0 d2 1\n" for topic in topics))
    folds.write_text(json.dumps([topics[:5], topics[5:]]))
    given = [judged, predicted, "--birch-dataset", known, "--folds", folds, "--sentences", 1, "-o", output]
    outcome = CliRunner().invoke(cli, ["tune", *map(str, given), "--released-grid", "--json"])
    assert outcome.exit_code == 0, outcome.output
    summary = json.loads(outcome.output)
    assert (summary["AP"], summary["queries"]) == (1.0, 10)
    assert [fold["a"] for fold in summary["folds"]] == [0.0, 0.0]
    assert output.read_text().splitlines()[0].split()[:4] == ["0", "Q0", "d2", "1"]
    refused = CliRunner().invoke(cli, ["tune", *map(str, given), "--scores", "probability"])
    assert refused.exit_code == 2
    assert "its predictions are logits" in refused.output
