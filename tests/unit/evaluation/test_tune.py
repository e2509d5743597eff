"""Weights by cross-validation, the held-out fold without a say; and Birch's released predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import EvaluationError, FormatError
from osrerank.evaluation.birch import read_predictions
from osrerank.evaluation.folds import block_folds, read_folds
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile
from osrerank.evaluation.tune import Evidence, Weights, by_share, cross_validate, grid, precisions
from osrerank.formats.trec import read_run
from osrerank.types import Qrels

TRUE = Weights(second=0.0, a=0.5, third=0.0)


def synthetic(queries=20, documents=40, *, third=0.0):
    """Queries whose relevant documents are the best ten by equal shares of first pass and best sentence(s)."""
    rng = np.random.default_rng(5)
    evidence, judgments = [], {}
    for number in range(queries):
        first_pass = np.sort(rng.normal(size=documents) * 3)[::-1]
        best = np.sort(rng.normal(size=(documents, 3)) * 3, axis=1)[:, ::-1]
        truth = 0.5 * first_pass + 0.5 * (best[:, 0] + third * best[:, 2])
        ids = tuple(f"d{place}" for place in range(documents))
        evidence.append(Evidence(f"{number + 1}", ids, first_pass, best))
        judgments[f"{number + 1}"] = {ids[place]: int(order < 10) for order, place in enumerate(np.argsort(-truth))}
    return evidence, Qrels(judgments)


def learn(evidence, qrels, settings):
    by_query = precisions(evidence, qrels, settings)
    return cross_validate(by_query, block_folds(by_query, 5), settings)


@pytest.mark.long
def test_known_optimum_is_found():
    evidence, qrels = synthetic()
    folds = learn(evidence, qrels, grid(2))
    assert [fold.weights for fold in folds] == [TRUE] * 5
    assert all(fold.test == fold.training == 1.0 for fold in folds)
    evidence, qrels = synthetic(third=0.6)
    assert {fold.weights for fold in learn(evidence, qrels, grid(3))} == {Weights(0.0, 0.5, 0.6)}


@pytest.mark.long
def test_held_out_labels_never_change_the_choice():
    evidence, qrels = synthetic()
    settings = grid(2)
    chosen = [fold.weights for fold in learn(evidence, qrels, settings)]
    rng = np.random.default_rng(1)
    for place, fold in enumerate(block_folds(qrels.judgments, 5)):
        permuted = dict(qrels.judgments)
        for query_id in fold:
            labels = list(permuted[query_id].values())
            permuted[query_id] = dict(zip(permuted[query_id], rng.permutation(labels).tolist(), strict=True))
        outcome = learn(evidence, Qrels(permuted), settings)[place]
        assert outcome.weights == chosen[place]
        assert outcome.test < 0.9


def test_grids():
    assert [len(grid(count)) for count in (1, 2, 3)] == [11, 121, 1331]
    assert len(grid(3, tuple(step / 10 for step in range(10)))) == 1000
    assert grid(3)[0] == Weights(0.0, 0.0, 0.0)


def test_equal_settings_take_the_lighter_second_sentence():
    for less in (0.0, 4e-5):  # the same when printed with four decimals
        values = np.ones(121)
        values[0] -= less
        (fold, _) = cross_validate({"1": values, "2": values}, [["1"], ["2"]], grid(2))
        assert fold.weights == Weights(0.0, 0.0, 0.0)


def test_documents_without_sentences_stay_below():
    best = np.array([[np.nan] * 3, [-5.0, np.nan, np.nan], [-4.0, np.nan, np.nan], [np.nan] * 3])
    evidence = Evidence("1", ("a", "b", "c", "d"), np.array([9.0, 2.0, 1.0, 0.5]), best)
    assert evidence.order(Weights(0.0, 0.0, 0.0)).tolist() == [2, 1, 0, 3]
    assert evidence.order(Weights(0.0, 1.0, 0.0)).tolist() == [1, 2, 0, 3]


def test_precision_counts_relevant_documents_that_were_not_found():
    evidence = Evidence("1", ("a", "b"), np.array([2.0, 1.0]), np.full((2, 3), np.nan))
    qrels = Qrels({"1": {"b": 1, "elsewhere": 2, "a": 0}, "2": {"x": 1}})
    assert precisions([evidence], qrels, [Weights(0, 1, 0)])["1"] == pytest.approx([0.25])
    assert precisions([evidence], Qrels({"1": {"a": 0}}), [Weights(0, 1, 0)])["1"] == [0.0]


def test_curve_is_the_best_of_each_share():
    evidence, qrels = synthetic()
    settings = grid(2)
    by_query = precisions(evidence, qrels, settings)
    curves = {count: by_share(by_query, settings, count) for count in (1, 2)}
    assert [a for a, _ in curves[1]] == [step / 10 for step in range(11)]
    assert max(curves[1], key=lambda point: point[1]) == (0.5, 1.0)
    assert all(two >= one for (_, one), (_, two) in zip(curves[1], curves[2], strict=True))


def test_block_folds_sort_numbers_as_numbers():
    assert block_folds(["10", "9", "x", "2"], 2) == (("2", "9"), ("10", "x"))
    with pytest.raises(EvaluationError, match="too few for 3 folds"):
        block_folds(["1", "2"], 3)


def test_published_folds(shared):
    folder = shared / "birch-folds"
    yang = read_folds(folder / "rob04_yang19_folds.json")
    paper2 = read_folds(folder / "robust04-paper2-folds.json")
    assert [len(fold) for fold in yang] == [len(fold) for fold in paper2] == [50] * 5
    assert {frozenset(fold) for fold in yang} == {frozenset(fold) for fold in paper2}
    core18 = read_folds(folder / "core18_birch_folds.json")
    every = [query_id for fold in core18 for query_id in fold]
    assert {frozenset(fold) for fold in core18} == {frozenset(fold) for fold in block_folds(every, 5)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "expected"),
        ('["ab"]', "expected"),
        ('{"s": {}}', "expected"),
        ('[["1"]]', "at least two"),
        ('[["1"], ["1", "2"]]', "query 1 is in two"),
    ],
)
def test_bad_folds_are_named(tmp_path, content, said):
    path = tmp_path / "folds.json"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=said):
        read_folds(path)


def test_folds_without_judged_queries_are_refused():
    with pytest.raises(EvaluationError, match="fold 2 has no judged query held out"):
        cross_validate({"1": np.ones(1), "3": np.ones(1)}, [["1"], ["7"], ["3"]], grid(1)[:1])


def write_side_file(path: Path, evidence) -> None:
    with SideFile(path, {}) as checkpoint:
        for one in evidence:
            candidates = []
            for rank, (doc_id, score, best) in enumerate(zip(one.doc_ids, one.first_pass, one.best, strict=True), 1):
                own = {"first_pass": {"score": float(score), "rank": rank}}
                stages = {"sentences": {"score": 0.0, "rank": rank, **marks(best)}}
                candidates.append({"doc_id": doc_id, "score": 0.0, **own, "stages": stages})
            checkpoint.append(QueryRecord.make(one.query_id, candidates, [], True, None, 0.0))


def marks(best):
    logits = dict(zip(("logit", "logit_2", "logit_3"), map(float, best), strict=True))
    probability = {name.replace("logit", "probability"): float(one > 0) for name, one in logits.items()}
    return {**logits, **probability}


def tuned(*arguments):
    return CliRunner().invoke(cli, ["tune", *map(str, arguments)])


def test_command_writes_run_weights_and_plot(tmp_path):
    evidence, qrels = synthetic()
    side, judged, output = tmp_path / "birch.run.jsonl", tmp_path / "qrels", tmp_path / "tuned.run"
    write_side_file(side, evidence)
    lines = [f"{q} 0 {doc_id} {grade}\n" for q, of in qrels.judgments.items() for doc_id, grade in of.items()]
    judged.write_text("".join(lines))
    plot = tmp_path / "ap.svg"
    outcome = tuned(judged, side, "-o", output, "--sentences", 2, "--plot", plot)
    assert outcome.exit_code == 0, outcome.output
    assert "AP 1.0000 over all held-out queries" in outcome.output
    assert len(read_run(output).rankings) == 20
    weights = json.loads((tmp_path / "tuned.run.weights.json").read_text())
    assert [(fold["a"], fold["weights"]) for fold in weights["folds"]] == [(0.5, [1.0, 0.0, 0.0])] * 5
    assert plot.stat().st_size > 1000
    again = tuned(judged, side, "-o", output, "--sentences", 1, "--scores", "probability", "--json", "--released-grid")
    assert all(fold["a"] < 1 for fold in json.loads(again.output)["folds"])


def test_a_run_without_sentences_is_refused(tmp_path):
    evidence, _ = synthetic(queries=3, documents=4)
    side, judged = tmp_path / "mono.run.jsonl", tmp_path / "qrels"
    judged.write_text("1 0 1 1\n")
    write_side_file(side, evidence)
    side.write_text(side.read_text().replace('"sentences"', '"mono"'))
    outcome = tuned(judged, side, "-o", tmp_path / "tuned.run")
    assert isinstance(outcome.exception, EvaluationError)
    assert "not reranked by sentences" in str(outcome.exception)
    assert not (tmp_path / "tuned.run").exists()


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


def write_birch(folder, dataset=DATASET, predictions=PREDICTIONS):
    paths = folder / "predict.mb", folder / "robust04_5cv.csv"
    for path, lines in zip(paths, (predictions, dataset), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    return paths


def test_best_sentences_in_first_pass_order(tmp_path):
    first, second = read_predictions(*write_birch(tmp_path))
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
        read_predictions(*write_birch(tmp_path, **lines))
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
    found = read_predictions(*write_birch(tmp_path, *as_birch_writes(name, topics, documents)))
    assert [one.query_id for one in found] == topics
    for one in found:
        assert one.doc_ids == tuple(documents)
        assert one.best[:, :2].tolist() == [[0.0, -1.0], [1.0, 0.0], [2.0, 1.0]]


def test_a_number_of_two_queries_is_refused(tmp_path):
    dataset, predictions = as_birch_writes("core17", ["307", "310"], ["a"])
    dataset[3] = dataset[3].replace("\t2\t4", "\t1\t4")
    with pytest.raises(FormatError, match="line 4: column 7 gives queries 307 and 310 the same number, 1"):
        read_predictions(*write_birch(tmp_path, dataset, predictions))


@pytest.mark.parametrize(("name", "lacking"), [("dataset", "no sentence"), ("predictions", "no prediction")])
def test_empty_files_are_refused(tmp_path, name, lacking):
    with pytest.raises(FormatError, match=lacking):
        read_predictions(*write_birch(tmp_path, **{name: []}))


def test_command_learns_from_them(tmp_path):
    """Ten queries whose relevant document has the best sentence and the lowest first-pass score."""
    topics = list("0123456789")
    predicted, known = write_birch(tmp_path, *as_birch_writes("robust04", topics, ["d0", "d1", "d2"]))
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
