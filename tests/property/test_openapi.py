"""The OpenAPI description is true: whatever fits it, or does not, is answered within it and never with a 5xx."""

import os

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

EXAMPLES = int(os.environ.get("TEST_OPENAPI_EXAMPLES", "20"))
POSTS = """/ /rerank /v1/rerank /v2/rerank /hf/rerank /v1/reranking /infinity/rerank /infinity/v1/rerank
/voyage/v1/rerank /invocations /predict /score /v1/score"""
GETS = "/health /live /ping /ready /.well-known/ready /info /meta /v1/models /metrics"
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

app = create_app(RerankService(Settings.load(), FunctionScorer()), ServerLimits(max_documents=50))
schema = schemathesis.openapi.from_asgi("/openapi.json", app)
operations = [found.ok() for found in schema.get_all_operations()]


def test_the_openapi_description_has_every_route():
    described = {(operation.method.upper(), operation.path) for operation in operations}
    assert described == {("POST", path) for path in POSTS.split()} | {("GET", path) for path in GETS.split()}


@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        pytest.param(operation, mode, id=f"{operation.label} {mode}")
        for operation in operations
        for mode in ("positive", "negative")
        if mode == "positive" or operation.method.upper() == "POST"  # a GET has nothing to get wrong
    ],
)
def test_answers_fit_the_openapi_description(operation, mode):
    @given(case=operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode)))
    @settings(max_examples=EXAMPLES, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    def check(case):
        without_deadline(case).call_and_validate(checks=CHECKS)

    check()


def without_deadline(case):
    """A time that is too short is answered 504, as it should be."""
    if is_number((case.headers or {}).get("X-Request-Timeout-Ms")):
        del case.headers["X-Request-Timeout-Ms"]
    if isinstance(case.body, dict) and is_number(case.body.get("timeout_ms")):
        del case.body["timeout_ms"]
    return case


def is_number(value):
    try:
        return float(value) > 0
    except (TypeError, ValueError):
        return False
