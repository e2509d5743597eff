"""What a server says of itself tells which engine it is, also to a user who may not ask for the version."""

from typing import Any

import pytest

from osrerank.retrieval.engine_finder import EngineFinder
from osrerank.types.engine import Engine, find_data_stream
from osrerank.types.engine_errors import EngineError
from osrerank.vectors.index import side_index
from tests.unit.retrieval.answered import answered

OPENSEARCH = {"version": {"distribution": "opensearch", "number": "3.6.0"}}
ELASTICSEARCH = {"version": {"number": "9.4.3", "build_flavor": "default"}}
FORBIDDEN = EngineError(OSError("forbidden"), status=403, kind="security_exception")
NO_HANDLER = EngineError(OSError("no handler found"), status=400)
ME = {"username": "reader"}


@pytest.mark.parametrize(
    ("answers", "engine"),
    [
        ([OPENSEARCH], Engine.OPENSEARCH),
        ([ELASTICSEARCH], Engine.ELASTICSEARCH),
        (["something else"], Engine.OPENSEARCH),
        ([FORBIDDEN, ME], Engine.ELASTICSEARCH),
        ([FORBIDDEN, NO_HANDLER], Engine.OPENSEARCH),
    ],
)
def test_the_engine_is_identified_with_one_request(answers: list[Any], engine: Engine) -> None:
    finder = EngineFinder()
    assert answered(finder.find(), *answers) == (engine, ["/", "/_security/_authenticate"][: len(answers)])
    assert answered(finder.find()) == (engine, [])


def test_the_engine_is_requested_again_after_no_answer() -> None:
    finder = EngineFinder()
    assert answered(finder.find(), EngineError(OSError("away"))) == (Engine.OPENSEARCH, ["/"])
    assert answered(finder.find(), ELASTICSEARCH) == (Engine.ELASTICSEARCH, ["/"])


def test_an_engine_that_the_caller_names_is_not_requested() -> None:
    assert answered(EngineFinder(Engine.ELASTICSEARCH).find()) == (Engine.ELASTICSEARCH, [])


@pytest.mark.parametrize(
    ("index", "stream"),
    [
        (".ds-logs-app-2026.11.28-000001", "logs-app"),
        (".ds-logs-app-000012", "logs-app"),
        ("partial-.ds-logs-app-2026.11.28-000001", "logs-app"),
        ("shrink-ab1c-.ds-logs-app-2026.11.28-000001", "logs-app"),
        ("logs-000001", "logs-000001"),
        (".ds-mine", ".ds-mine"),
    ],
)
def test_the_indices_of_a_data_stream_share_a_side_index(index: str, stream: str) -> None:
    assert find_data_stream(index) == stream
    assert side_index(index) == f"osrerank-vectors-{stream}"


def test_the_side_index_is_on_the_indexs_own_cluster() -> None:
    assert side_index("far:.ds-logs-000001") == "far:osrerank-vectors-logs"
