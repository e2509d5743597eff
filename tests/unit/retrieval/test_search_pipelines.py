"""What a search knows of the search pipeline that it runs under, and what it asks for to know it."""

from typing import Any

import pytest

from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.retrieval.search_pipelines import (
    NO_PIPELINE,
    OSRERANK_DESCRIPTION,
    PIPELINES_PERMISSION,
    SETTINGS_PERMISSION,
    SearchPipelines,
    parse_pipeline,
)
from osrerank.testing import ManualClock
from osrerank.types.engine import Engine
from osrerank.types.engine_errors import EngineError
from tests.unit.retrieval.answered import answered

OPENSEARCH = EngineFinder(Engine.OPENSEARCH)
SETTING = "index.search.default_pipeline"
ABSENT = EngineError(OSError("no such index"), status=404, kind="index_not_found_exception")


def settings(**names: str) -> dict[str, Any]:
    return {index: {"settings": {SETTING: name}} for index, name in names.items()}


def test_an_index_without_a_default_pipeline_costs_one_request_a_minute() -> None:
    clock = ManualClock()
    pipelines = SearchPipelines(OPENSEARCH, clock)
    assert answered(pipelines.find("a", {}, {}), {}) == (NO_PIPELINE, [f"/a/_settings/{SETTING}"])
    assert answered(pipelines.find("a", {}, {})) == (NO_PIPELINE, [])
    clock.sleep(61)
    assert answered(pipelines.find("a", {}, {}), {})[1] == [f"/a/_settings/{SETTING}"]


def test_a_default_pipeline_is_read_once() -> None:
    pipelines = SearchPipelines(OPENSEARCH)
    definition = {"p": {"request_processors": [{"filter_query": {}}]}}
    pipeline, paths = answered(pipelines.find(["a", "b"], {}, {}), settings(a="p", b="p"), definition)
    assert (pipeline.name, pipeline.blocking_reason, pipeline.may_shorten, pipeline.has_default) == (
        "p",
        "",
        False,
        True,
    )
    assert paths == [f"/a,b/_settings/{SETTING}", "/_search/pipeline/p"]
    assert answered(pipelines.find(["a", "b"], {}, {})) == (pipeline, [])


def test_without_an_index_and_of_several_defaults_opensearch_applies_none() -> None:
    pipelines = SearchPipelines(OPENSEARCH)
    assert answered(pipelines.find(None, {}, {})) == (NO_PIPELINE, [])
    pipeline, paths = answered(pipelines.find("a,b", {}, {}), settings(a="p", b="q"))
    assert (pipeline.name, pipeline.has_default, len(paths)) == ("", True, 1)
    pipeline, _ = answered(pipelines.find("c", {}, {}), settings(c="_none"))
    assert (pipeline.name, pipeline.has_default) == ("", False)


def test_engines_without_search_pipelines_get_no_look_up() -> None:
    for engine in (Engine.EMBEDDED, Engine.ELASTICSEARCH):
        pipelines = SearchPipelines(EngineFinder(engine))
        assert answered(pipelines.find("a", {"search_pipeline": "p"}, {})) == (NO_PIPELINE, [])


def test_a_pipeline_that_the_caller_names_or_defines_is_used() -> None:
    pipelines = SearchPipelines(OPENSEARCH)
    ranking = {"response_processors": [{"rerank": {}}]}
    pipeline, paths = answered(
        pipelines.find("a", {"search_pipeline": "x/y"}, {"search_pipeline": "z"}), {"x/y": ranking}
    )
    assert "x/y ranks the hits itself, or may do so (rerank)" in pipeline.blocking_reason
    assert paths == ["/_search/pipeline/x%2Fy"]
    pipeline, paths = answered(pipelines.find("a", {}, {"search_pipeline": ranking}))
    assert ("of the request ranks" in pipeline.blocking_reason, paths) == (True, [])
    pipeline, paths = answered(pipelines.find("a", {}, {"search_pipeline": "_none"}))
    assert (pipeline.blocking_reason, paths) == ("", [])


@pytest.mark.parametrize(
    ("kind", "is_ranking"),
    [
        ("rename_field", False), ("collapse", False), ("truncate_hits", False), ("sort", False), ("split", False),
        ("hybrid_score_explanation", False), ("rerank", True), ("ml_inference", True),
        ("retrieval_augmented_generation", True), ("of-a-plugin", True),
    ],
)  # fmt: skip
def test_an_unknown_response_processor_counts_as_ranking(kind: str, is_ranking: bool) -> None:
    pipeline = parse_pipeline("p", {"response_processors": [{kind: {}}], "phase_results_processors": [{"any": {}}]})
    assert bool(pipeline.blocking_reason) is is_ranking
    assert pipeline.changes_fields is (kind in ("rename_field", "sort", "split"))


def test_osreranks_own_pipeline_as_a_default_is_sent_without_its_rerank_processor() -> None:
    hiding = [{"filter_query": {"query": {"term": {"access": "open"}}}}]
    installed = {"description": f"{OSRERANK_DESCRIPTION} Made by ...", "response_processors": [{"rerank": {}}]}
    pipelines = SearchPipelines(OPENSEARCH)
    pipeline, _ = answered(pipelines.find("a", {}, {}), settings(a="p"), {"p": installed})
    assert (pipeline.blocking_reason, pipeline.replacement) == ("", {})
    pipeline, _ = answered(
        pipelines.find("b", {}, {}), settings(b="q"), {"q": {**installed, "request_processors": hiding}}
    )
    assert (pipeline.blocking_reason, pipeline.replacement) == ("", {"request_processors": hiding})
    requested, _ = answered(pipelines.find("a", {"search_pipeline": "p"}, {}))
    assert (bool(requested.blocking_reason), requested.replacement) == (True, None)  # whoever names it wants it
    processors = [{"rerank": {}}, {"ml_inference": {}}]
    pipeline, _ = answered(
        pipelines.find("c", {}, {}), settings(c="r"), {"r": {**installed, "response_processors": processors}}
    )
    assert (bool(pipeline.blocking_reason), pipeline.replacement) == (True, None)


def test_a_user_without_the_right_to_read_settings_is_warned_once_and_reranked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    pipelines, forbidden = SearchPipelines(OPENSEARCH, clock), EngineError(OSError("no permissions"), status=403)
    for _ in range(3):
        pipeline, _ = answered(pipelines.find("a", {}, {}), forbidden)
        assert (pipeline.blocking_reason, pipeline.missing_permission) == ("", SETTINGS_PERMISSION)
        clock.sleep(61)
    assert [SETTINGS_PERMISSION in record.getMessage() for record in caplog.records] == [True]


def test_a_pipeline_whose_definition_is_forbidden_counts_as_ranking() -> None:
    pipelines, forbidden = SearchPipelines(OPENSEARCH), EngineError(OSError("no permissions"), status=403)
    pipeline, _ = answered(pipelines.find("a", {}, {}), settings(a="p"), forbidden)
    assert pipeline.blocking_reason.endswith(f"grant {PIPELINES_PERMISSION}")
    assert answered(pipelines.find("a", {}, {})) == (pipeline, [])  # for a minute


def test_a_failed_look_up_of_a_default_pipeline_is_repeated() -> None:
    pipelines, away = SearchPipelines(OPENSEARCH), EngineError(OSError("away"))
    assert answered(pipelines.find("a", {}, {}), away)[0].missing_permission == SETTINGS_PERMISSION
    pipeline, _ = answered(pipelines.find("a", {}, {}), settings(a="p"), away)
    assert "cannot be read" in pipeline.blocking_reason
    pipeline, paths = answered(pipelines.find("a", {}, {}), {"p": {}})
    assert (pipeline.blocking_reason, paths) == ("", ["/_search/pipeline/p"])


def test_a_missing_index_or_pipeline_gives_the_errors_of_the_search() -> None:
    pipelines = SearchPipelines(OPENSEARCH)
    assert answered(pipelines.find("a", {}, {}), ABSENT)[0] == NO_PIPELINE
    pipeline, _ = answered(pipelines.find("a", {"search_pipeline": "p"}, {}), {})
    assert pipeline.blocking_reason == ""


def test_the_default_pipeline_of_a_remote_index_is_looked_up_once_a_minute() -> None:
    pipelines = SearchPipelines(OPENSEARCH)
    assert answered(pipelines.find("other:a", {}, {}), ABSENT) == (NO_PIPELINE, [f"/other%3Aa/_settings/{SETTING}"])
    assert answered(pipelines.find("other:a", {}, {})) == (NO_PIPELINE, [])
