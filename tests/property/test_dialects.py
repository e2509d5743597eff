"""Whatever a client sends in whichever dialect, it gets a reason, or scores: never a 5xx, never an empty success."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.missing_routes import METHOD_BY_PATH
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer

client = TestClient(
    create_app(RerankService(Settings.load(), FunctionScorer()), ServerLimits(max_documents=20)),
    raise_server_exceptions=False,
)
ROUTES = [path for path, method in METHOD_BY_PATH.items() if method == "POST"]
SCALARS = st.sampled_from([None, True, False, 0, 1, -1, 2.5, float("nan"), "", " ", "cat", "é\ud800", 10**30])
FIELDS = st.sampled_from(["text", "title", "text_pair", "é", ""])
NESTED = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3), max_leaves=6
)
DOCUMENT = st.text(max_size=5) | st.dictionaries(FIELDS, NESTED, max_size=3) | st.just({"text": "a cat"})
LISTS = st.lists(st.just("a cat"), min_size=1, max_size=4) | st.lists(DOCUMENT, max_size=4)
COUNTS = st.sampled_from([0, 1, 2, 99, -1])
FLAGS = st.booleans()
PAIR = st.just({"text": "cat", "text_pair": "a cat"})
VALUES = {
    "query": st.just("cat"), "text_1": st.just("cat"), "queries": LISTS, "documents": LISTS, "texts": LISTS,
    "input": LISTS, "text_2": LISTS, "inputs": PAIR | st.lists(PAIR, max_size=3), "property": st.just(""),
    "model": st.just("jina-m"), "top_n": COUNTS, "top_k": COUNTS, "return_documents": FLAGS, "return_text": FLAGS,
    "return_input": FLAGS, "raw_scores": FLAGS, "truncate": FLAGS, "rank_fields": st.lists(FIELDS, max_size=2),
}  # fmt: skip
BODIES = st.fixed_dictionaries({}, optional={name: value | NESTED for name, value in VALUES.items()})
WHOLE = st.fixed_dictionaries(
    {name: VALUES[name] for name in ("query", "text_1", "documents", "text_2")},
    optional={name: value for name, value in VALUES.items() if name.startswith(("r", "top", "input", "texts"))},
)
KINDS = st.sampled_from([None, "application/json", "application/json; charset=utf-8", "application/vnd.api+json"])


def scores(answer):
    """Return the entries of an answer of any dialect."""
    if isinstance(answer, list):
        return answer
    return next(answer[name] for name in ("results", "data", "scores") if name in answer)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(route=st.sampled_from(ROUTES), body=BODIES | WHOLE, kind=KINDS)
def test_a_rerank_request_of_any_shape_is_scored_or_refused_with_a_reason(route, body, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    answer = client.post(route, content=json.dumps(body), headers=headers)
    assert answer.status_code in (200, 422), answer.text
    if answer.status_code == 200:
        assert scores(answer.json())
    else:
        assert answer.json()["message"]


@settings(max_examples=50, deadline=None)
@given(route=st.sampled_from(ROUTES), kind=st.sampled_from(["text/html", "application/x-www-form-urlencoded", "x"]))
def test_a_body_that_is_not_an_object_is_refused(route, kind):
    answer = client.post(route, content=b'{"query": "cat", "documents": ["a cat"]}', headers={"Content-Type": kind})
    assert (answer.status_code, "application/json" in answer.json()["message"]) == (415, True)
