"""The service of a model: which stage a model runs in, and when documents are split into passages."""

import dataclasses

import pytest

from osrerank.options.rerank import Rerank
from osrerank.service import RECIPE_OPTIONS, RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer
from osrerank.types import NEVER, Advice, Ranking
from tests.rankings import ranking_of

LONG = "x " * 360 + "hit"
SHORT = "hit but short"


class ByPassages(FunctionScorer):
    """Reads documents beyond its window, of ten words, by passages."""

    @property
    def advice(self) -> Advice:
        return Advice(passages=True)


def beginning(query: str, text: str) -> float:
    return float(query in text.split()[:200])


def reranked(scorer: FunctionScorer, **options: object) -> Ranking:
    ranking = ranking_of(["nothing here", LONG, SHORT], query="hit")
    return RerankService(Settings.load(), scorer).rerank(ranking, Rerank(**options), NEVER)  # type: ignore[arg-type]


def test_long_documents_are_cut_if_the_card_recommends_it_or_on_request() -> None:
    ranking = reranked(ByPassages(beginning))
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d1", "d2", "d0"]
    passage = ranking.candidates[0].trace[-1].passage
    assert passage is not None
    assert LONG[passage.start : passage.end].endswith("hit")
    assert ranking.candidates[1].trace[-1].passage is None
    assert ranking.reports[-1].inferences == 1 + 3 + 1
    ranking = reranked(ByPassages(beginning), passages="maxp")
    assert all(candidate.trace[-1].passage is not None for candidate in ranking.candidates)


@pytest.mark.parametrize("options", [{"passages": "off"}, {"passages": None}])
def test_cutting_into_passages_can_be_turned_off(options: dict[str, object]) -> None:
    ranking = reranked(ByPassages(beginning), **options)
    assert [candidate.doc_id for candidate in ranking.candidates] == ["d2", "d0", "d1"]
    assert ranking.reports[-1].inferences == reranked(FunctionScorer(beginning)).reports[-1].inferences == 3


class BiEncoder(FunctionScorer):
    """Says that it is a bi-encoder."""

    @property
    def advice(self) -> Advice:
        return Advice(kind="bi-encoder")


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize(
    ("scorer", "kind", "stage"), [(BiEncoder, "bi-encoder", "vectors"), (FunctionScorer, "cross-encoder", "mono")]
)
def test_a_model_runs_in_the_stage_of_its_kind(scorer: type, kind: str, stage: str, is_named: bool) -> None:
    ranking = reranked(scorer(beginning), pipeline=stage if is_named else "auto")
    assert [(report.name, report.kind) for report in ranking.reports] == [(stage, kind)]
    assert (ranking.candidates[0].trace[-1].stage, ranking.warnings) == (stage, ())


def test_pipeline_mono_with_a_bi_encoder_runs_as_vectors_with_a_warning() -> None:
    ranking = reranked(BiEncoder(beginning), pipeline="mono")
    assert [report.name for report in ranking.reports] == ["vectors"]
    (warning,) = ranking.warnings
    assert warning.startswith("the pipeline mono ran as vectors, because testing/function is a bi-encoder")


def test_each_option_either_decides_the_stages_or_is_read_elsewhere_in_a_search() -> None:
    read_elsewhere = {
        "query", "query_fields", "fields", "traffic", "deadline_ms", "on_failure", "explain", "rm3",
        "min_score", "min_probability", "cutoff", "interleave", "boosts",
    }  # fmt: skip
    options = {option.name for option in dataclasses.fields(Rerank)}
    assert options == read_elsewhere | {*RECIPE_OPTIONS}  # else a cached recipe would ignore an option
    assert not read_elsewhere & {*RECIPE_OPTIONS}
