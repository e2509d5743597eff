"""The measure on development sets during a training."""

import math

import pytest
import torch

from osrerank.errors import ConfigError, EvaluationError
from osrerank.evaluation.measures import evaluate
from osrerank.options.passages import Passages
from osrerank.scoring.registry import load_scorer
from osrerank.stages.passages import PassageStage
from osrerank.training.development import DevelopmentSet, NetworkScorer
from osrerank.training.examples.example import Example
from osrerank.training.recipes import Recipe
from osrerank.training.weights.models import load_trainee
from osrerank.types import Qrels, Run, ScoredDocument
from tests.rankings import ranking_of
from tests.servers import ROOT

CLASSIFIER = ROOT / "tests" / "data" / "tiny-bert-two-labels"
DOCUMENTS = ("low salt", "the wing of the engine", "heat " * 40, "blood")
EXAMPLE = Example("low pressure", DOCUMENTS, (0, 1, 0, 0))
SCORING = NetworkScorer(torch.device("cpu"), 100)


def order() -> list[int]:
    """The production scorer's order of the documents."""
    scorer = load_scorer(str(CLASSIFIER), backend="torch")
    values = scorer.score(EXAMPLE.query, DOCUMENTS, [(index,) for index in range(4)]).values
    return sorted(range(4), key=lambda place: -values[place])


def test_the_development_measure_is_that_of_the_scored_order() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe())
    trainee.network.train()
    rank = order().index(1) + 1
    value = DevelopmentSet([EXAMPLE], "nDCG@10").measure_network(trainee, SCORING)
    assert value == pytest.approx(1 / math.log2(rank + 1))
    assert DevelopmentSet([EXAMPLE], "RR@10").measure_network(trainee, SCORING) == pytest.approx(1 / rank)
    assert DevelopmentSet([EXAMPLE], "RR@10").measure_first_pass() == pytest.approx(1 / 2)
    assert trainee.network.training


def test_development_hits_below_the_depth_keep_their_rank() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe())
    late = Example(EXAMPLE.query, DOCUMENTS, (0, 0, 0, 1))
    assert DevelopmentSet([late], "RR@10", depth=2).measure_network(trainee, SCORING) == pytest.approx(1 / 4)


def test_development_documents_are_scored_by_the_configured_passages() -> None:
    """The order of the documents is that of reranking with the same options."""
    examples = Example("low", ("salt heat wing " * 9, "the blood of low pressure " * 4, "wing " * 30), (0, 1, 0))
    ranking = ranking_of(list(examples.documents), query="low")
    scorer = load_scorer(str(CLASSIFIER), backend="torch")
    trainee = load_trainee(CLASSIFIER, Recipe())
    for aggregation in ("maxp", "firstp", "sump", "kmaxavgp"):
        options = Passages(aggregation, words=4, stride=2)
        reranked = PassageStage(scorer, options).rerank(ranking).candidates
        rank = next(candidate.rank for candidate in reranked if candidate.doc_id == "d1")
        development = DevelopmentSet([examples], "RR@10", passages=options)
        assert development.measure_network(trainee, SCORING) == pytest.approx(1 / rank), aggregation


def test_a_duo_models_sums_are_no_probabilities() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe(), kind="duo")
    with pytest.raises(ConfigError, match="kmaxavgp needs probabilities; for a duo model, set maxp"):
        DevelopmentSet([EXAMPLE], "RR@10", passages=Passages("kmaxavgp")).measure_network(trainee, SCORING)


def test_average_precision_counts_relevant_documents_that_the_first_pass_missed() -> None:
    example = Example("q", ("a", "b", "c", "d"), (0, 1, 0, 1), missed=2)
    by_hand = (1 / 2 + 2 / 4) / 4
    assert DevelopmentSet([example], "AP").measure_first_pass() == pytest.approx(by_hand)
    assert DevelopmentSet([example], "AP@3").measure_first_pass() == pytest.approx(1 / 2 / 4)
    ideal = sum(1 / math.log2(rank + 1) for rank in (1, 2, 3, 4))
    dcg = 1 / math.log2(3) + 1 / math.log2(5)
    assert DevelopmentSet([example], "nDCG@10").measure_first_pass() == pytest.approx(dcg / ideal)
    pytest.importorskip("ir_measures")
    run = Run({"q": tuple(ScoredDocument(name, 4.0 - index) for index, name in enumerate("abcd"))})
    qrels = Qrels({"q": {"b": 1, "d": 1, "gone": 1, "lost": 1}})
    assert evaluate(qrels, run, ["AP", "AP@3"]).overall == pytest.approx({"AP": by_hand, "AP@3": 1 / 8})


@pytest.mark.parametrize("measure", ["AP@", "nDCG", "nDCG@0", "P@10", "RR"])
def test_unknown_development_measures_are_refused(measure: str) -> None:
    with pytest.raises(ConfigError, match="nDCG@10, RR@10, AP@10 or AP"):
        DevelopmentSet([EXAMPLE], measure)


def test_a_set_without_relevant_documents_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no relevant document"):
        DevelopmentSet([Example("q", ("a",), (0,))], "nDCG@10")
