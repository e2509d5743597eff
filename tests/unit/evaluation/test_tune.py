"""Weights by cross-validation, the held-out fold without a say."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from osrerank.cli import cli
from osrerank.errors import EvaluationError
from osrerank.evaluation.folds import read_folds, split_into_blocks
from osrerank.evaluation.records import QueryRecord
from osrerank.evaluation.side_file import SideFile
from osrerank.evaluation.tune import (
    SentenceScores,
    Weights,
    build_grid,
    compute_average_precisions,
    cross_validate,
    find_max_ap_by_a,
)
from osrerank.formats.trec import read_run
from osrerank.types import Qrels

TRUE = Weights(w2=0.0, a=0.5, w3=0.0)


def synthetic(queries=20, documents=40, *, third=0.0):
    """Queries whose relevant documents are the best ten by equal shares of first pass and best sentence(s)."""
    rng = np.random.default_rng(5)
    evidence, judgments = [], {}
    for number in range(queries):
        first_pass = np.sort(rng.normal(size=documents) * 3)[::-1]
        best = np.sort(rng.normal(size=(documents, 3)) * 3, axis=1)[:, ::-1]
        truth = 0.5 * first_pass + 0.5 * (best[:, 0] + third * best[:, 2])
        ids = tuple(f"d{index}" for index in range(documents))
        evidence.append(SentenceScores(f"{number + 1}", ids, first_pass, best))
        judgments[f"{number + 1}"] = {
            ids[true_rank]: int(order < 10) for order, true_rank in enumerate(np.argsort(-truth))
        }
    return evidence, Qrels(judgments)


def learn(evidence, qrels, settings):
    by_query = compute_average_precisions(evidence, qrels, settings)
    return cross_validate(by_query, split_into_blocks(by_query, 5), settings)


@pytest.mark.long
def test_tune_finds_a_known_optimum():
    evidence, qrels = synthetic()
    folds = learn(evidence, qrels, build_grid(2))
    assert [fold.setting for fold in folds] == [TRUE] * 5
    assert all(fold.held_out_mean == fold.training_mean == 1.0 for fold in folds)
    evidence, qrels = synthetic(third=0.6)
    assert {fold.setting for fold in learn(evidence, qrels, build_grid(3))} == {Weights(0.0, 0.5, 0.6)}


@pytest.mark.long
def test_held_out_labels_never_change_the_choice():
    evidence, qrels = synthetic()
    settings = build_grid(2)
    chosen = [fold.setting for fold in learn(evidence, qrels, settings)]
    rng = np.random.default_rng(1)
    for index, fold in enumerate(split_into_blocks(qrels.judgments, 5)):
        permuted = dict(qrels.judgments)
        for query_id in fold:
            labels = list(permuted[query_id].values())
            permuted[query_id] = dict(zip(permuted[query_id], rng.permutation(labels).tolist(), strict=True))
        outcome = learn(evidence, Qrels(permuted), settings)[index]
        assert outcome.setting == chosen[index]
        assert outcome.held_out_mean < 0.9


def test_tune_tries_every_weight_of_the_grid():
    assert [len(build_grid(count)) for count in (1, 2, 3)] == [11, 121, 1331]
    assert len(build_grid(3, tuple(step / 10 for step in range(10)))) == 1000
    assert build_grid(3)[0] == Weights(0.0, 0.0, 0.0)


def test_equal_settings_take_the_lighter_second_sentence():
    for less in (0.0, 4e-5):  # the same when printed with four decimals
        values = np.ones(121)
        values[0] -= less
        (fold, _) = cross_validate({"1": values, "2": values}, [["1"], ["2"]], build_grid(2))
        assert fold.setting == Weights(0.0, 0.0, 0.0)


def test_documents_without_sentences_stay_below():
    best = np.array([[np.nan] * 3, [-5.0, np.nan, np.nan], [-4.0, np.nan, np.nan], [np.nan] * 3])
    evidence = SentenceScores("1", ("a", "b", "c", "d"), np.array([9.0, 2.0, 1.0, 0.5]), best)
    assert evidence.rank(Weights(0.0, 0.0, 0.0)).tolist() == [2, 1, 0, 3]
    assert evidence.rank(Weights(0.0, 1.0, 0.0)).tolist() == [1, 2, 0, 3]


def test_precision_counts_relevant_documents_that_were_not_found():
    evidence = SentenceScores("1", ("a", "b"), np.array([2.0, 1.0]), np.full((2, 3), np.nan))
    qrels = Qrels({"1": {"b": 1, "elsewhere": 2, "a": 0}, "2": {"x": 1}})
    assert compute_average_precisions([evidence], qrels, [Weights(0, 1, 0)])["1"] == pytest.approx([0.25])
    assert compute_average_precisions([evidence], Qrels({"1": {"a": 0}}), [Weights(0, 1, 0)])["1"] == [0.0]


def test_curve_is_the_best_of_each_share():
    evidence, qrels = synthetic()
    settings = build_grid(2)
    by_query = compute_average_precisions(evidence, qrels, settings)
    curves = {count: find_max_ap_by_a(by_query, settings, count) for count in (1, 2)}
    assert [a for a, _ in curves[1]] == [step / 10 for step in range(11)]
    assert max(curves[1], key=lambda point: point[1]) == (0.5, 1.0)
    assert all(two >= one for (_, one), (_, two) in zip(curves[1], curves[2], strict=True))


def test_block_folds_sort_numbers_as_numbers():
    assert split_into_blocks(["10", "9", "x", "2"], 2) == (("2", "9"), ("10", "x"))
    with pytest.raises(EvaluationError, match="too few for 3 folds"):
        split_into_blocks(["1", "2"], 3)


def test_the_published_folds_of_robust04_are_read(shared):
    folder = shared / "birch-folds"
    yang = read_folds(folder / "rob04_yang19_folds.json")
    paper2 = read_folds(folder / "robust04-paper2-folds.json")
    assert [len(fold) for fold in yang] == [len(fold) for fold in paper2] == [50] * 5
    assert {frozenset(fold) for fold in yang} == {frozenset(fold) for fold in paper2}
    core18 = read_folds(folder / "core18_birch_folds.json")
    every = [query_id for fold in core18 for query_id in fold]
    assert {frozenset(fold) for fold in core18} == {frozenset(fold) for fold in split_into_blocks(every, 5)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not JSON"),
        ("[1, 2]", "a number stands where a list is expected; list each fold's query ids"),
        ('["ab"]', "a fold is the text 'ab', not a list; list each fold's query ids"),
        ('{"s": {}}', "'predict' is missing; list each fold's query ids"),
        ('[["1"]]', "at least two"),
        ('[["1"], ["1", "2"]]', "has query '1' in two"),
    ],
)
def test_a_malformed_folds_file_is_named(tmp_path, content, said):
    path = tmp_path / "folds.json"
    path.write_text(content)
    with pytest.raises(EvaluationError, match=said):
        read_folds(path)


def test_folds_without_judged_queries_are_refused():
    with pytest.raises(EvaluationError, match="fold 2 has no judged query"):
        cross_validate({"1": np.ones(1), "3": np.ones(1)}, [["1"], ["7"], ["3"]], build_grid(1)[:1])


def write_side_file(path: Path, evidence) -> None:
    with SideFile(path, {}) as checkpoint:
        for one in evidence:
            candidates = []
            for rank, (doc_id, score, best) in enumerate(
                zip(one.doc_ids, one.first_pass_scores, one.sentence_scores, strict=True), 1
            ):
                own = {"first_pass": {"score": float(score), "rank": rank}}
                stages = {"sentences": {"score": 0.0, "rank": rank, **marks(best)}}
                candidates.append({"doc_id": doc_id, "score": 0.0, **own, "stages": stages})
            checkpoint.append(QueryRecord.from_parts(one.query_id, candidates, [], True, None, 0.0))


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
    assert "has no sentence scores" in str(outcome.exception)
    assert not (tmp_path / "tuned.run").exists()
