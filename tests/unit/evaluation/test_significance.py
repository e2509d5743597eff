import math

import numpy as np
import pytest
from scipy import stats

from osrerank.errors import EvaluationError
from osrerank.evaluation.measures import Evaluation
from osrerank.evaluation.significance import (
    compare_runs,
    effect_size,
    holm,
    letter,
    paired_t_test,
    randomisation_test,
    superscripts,
)


def evaluation(run: str, *values: float, measure: str = "AP") -> Evaluation:
    per_query = {str(number): value for number, value in enumerate(values)}
    return Evaluation(run, {measure: per_query}, {measure: sum(values) / len(values)})


def test_t_test_equals_scipys() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.random(50), generator.random(50)
    assert paired_t_test(first - second) == pytest.approx(stats.ttest_rel(first, second).pvalue)


def test_effect_size_and_differences_without_spread() -> None:
    assert paired_t_test(np.zeros(5)) == 1.0
    assert paired_t_test(np.full(5, 0.1)) == 0.0
    assert effect_size(np.array([1.0, 2.0, 3.0])) == pytest.approx(2.0)
    assert effect_size(np.zeros(5)) == 0.0
    assert effect_size(np.full(5, -0.1)) == -math.inf


def test_exact_randomisation_by_hand() -> None:
    # Of the eight sign patterns of 1, 2, 3 only +++ and --- reach |sum| = 6.
    assert randomisation_test(np.array([1.0, 2.0, 3.0])) == 2 / 8
    # |sum| = 4 is reached by +++, -++ (4), and their opposites.
    assert randomisation_test(np.array([-1.0, 2.0, 3.0])) == 4 / 8
    assert randomisation_test(np.zeros(4)) == 1.0


@pytest.mark.long
def test_sampled_randomisation_equals_scipys_permutation_test() -> None:
    differences = np.random.default_rng(4).normal(0.05, 0.1, size=17)
    exact = stats.permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    p_value = randomisation_test(differences, seed=0, samples=50_000)
    assert p_value == pytest.approx(exact, abs=0.01)
    assert p_value == randomisation_test(differences, seed=0, samples=50_000)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_comparison_counts_wins_ties_and_losses() -> None:
    (comparison,) = compare_runs([evaluation("base", 0.1, 0.5, 0.4), evaluation("other", 0.3, 0.5, 0.3)])
    assert (comparison.wins, comparison.ties, comparison.losses) == (1, 1, 1)
    assert comparison.difference == pytest.approx(0.1 / 3)
    assert comparison.p_t_holm == comparison.p_t


def test_all_pairs_are_corrected_together() -> None:
    runs = [evaluation("a", 0.1, 0.2, 0.3), evaluation("b", 0.2, 0.3, 0.5), evaluation("c", 0.0, 0.3, 0.3)]
    comparisons = compare_runs(runs, all_pairs=True)
    assert [(one.baseline, one.run) for one in comparisons] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [one.p_t_holm for one in comparisons] == holm([one.p_t for one in comparisons])


def test_letters_name_the_runs_that_are_beaten() -> None:
    weak, strong = [0.1 + n / 1000 for n in range(20)], [0.5 + n / 900 for n in range(20)]
    comparisons = compare_runs([evaluation("weak", *weak), evaluation("strong", *strong)])
    assert superscripts(comparisons, ["weak", "strong"]) == {("strong", "AP"): "a"}
    comparisons = compare_runs([evaluation("strong", *strong), evaluation("weak", *weak)])
    assert superscripts(comparisons, ["strong", "weak"], test="randomisation") == {("strong", "AP"): "b"}
    assert letter(26) == "(27)"


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([evaluation("a", 0.1, 0.2)], "two runs or more"),
        ([evaluation("a", 0.1, 0.2), evaluation("a", 0.1, 0.2)], "same name"),
        ([evaluation("a", 0.1), evaluation("b", 0.1)], "two queries or more"),
        ([evaluation("a", 0.1, 0.2), evaluation("b", 0.1, 0.2, 0.3)], "different judged queries .* with --complete"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused(runs: list[Evaluation], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        compare_runs(runs)
