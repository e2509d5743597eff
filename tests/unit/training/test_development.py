import math

import pytest

torch = pytest.importorskip("torch")

from osrerank.errors import ConfigError, EvaluationError  # noqa: E402 - with their twins
from osrerank.options.passages import Windows  # noqa: E402
from osrerank.scoring.registry import load_scorer  # noqa: E402
from osrerank.training.development import Development, Scoring, passages_of  # noqa: E402
from osrerank.training.examples.lists import Example  # noqa: E402
from osrerank.training.recipes import Recipe  # noqa: E402
from osrerank.training.weights.models import load_trainee  # noqa: E402
from tests.servers import ROOT  # noqa: E402

CLASSIFIER = ROOT / "tests" / "data" / "tiny-bert-two-labels"
DOCUMENTS = ("low salt", "the wing of the engine", "heat " * 40, "blood")
EXAMPLE = Example("low pressure", DOCUMENTS, (0, 1, 0, 0))
SCORING = Scoring(torch.device("cpu"), 100)


def order() -> list[int]:
    """The production scorer's order of the documents."""
    scorer = load_scorer(str(CLASSIFIER), backend="torch")
    values = scorer.score(EXAMPLE.query, DOCUMENTS, [(place,) for place in range(4)]).values
    return sorted(range(4), key=lambda place: -values[place])


def test_the_measure_is_that_of_the_order_that_scoring_gives() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe())
    trainee.network.train()
    rank = order().index(1) + 1
    value = Development([EXAMPLE], "nDCG@10").value(trainee, SCORING)
    assert value == pytest.approx(1 / math.log2(rank + 1))
    assert Development([EXAMPLE], "RR@10").value(trainee, SCORING) == pytest.approx(1 / rank)
    assert Development([EXAMPLE], "RR@10").first_pass() == pytest.approx(1 / 2)
    assert trainee.network.training


def test_what_is_below_the_depth_keeps_its_place() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe())
    late = Example(EXAMPLE.query, DOCUMENTS, (0, 0, 0, 1))
    assert Development([late], "RR@10", depth=2).value(trainee, SCORING) == pytest.approx(1 / 4)


def test_long_documents_are_judged_by_their_best_passage() -> None:
    trainee = load_trainee(CLASSIFIER, Recipe())
    places = order()
    joined = Example(EXAMPLE.query, (DOCUMENTS[places[3]], f"{DOCUMENTS[places[2]]}"), (1, 0))
    windows = Windows(words=200, stride=200)
    assert Development([joined], "RR@10", windows=windows).value(trainee, SCORING) == pytest.approx(1 / 2)
    assert passages_of("a b c", Windows(words=2, stride=1)) == ["a b", "b c", "c"]
    assert passages_of("", Windows()) == [""]


@pytest.mark.parametrize("measure", ["AP", "nDCG", "nDCG@0", "P@10"])
def test_other_measures_are_refused(measure: str) -> None:
    with pytest.raises(ConfigError, match="nDCG@10 or RR@10"):
        Development([EXAMPLE], measure)


def test_a_set_without_relevant_documents_is_refused() -> None:
    with pytest.raises(EvaluationError, match="no relevant document"):
        Development([Example("q", ("a",), (0,))], "nDCG@10")
