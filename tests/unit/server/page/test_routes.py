"""The routes of the comparison page: searches, judgments, readiness, and refusals."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from opensearchpy import ConnectionError as Unreachable
from starlette.testclient import TestClient

from osrerank import Rerank, connect
from osrerank.errors import ConfigError, ModelLoadError
from osrerank.formats.trec import read_qrels
from osrerank.options.defaults import Defaults
from osrerank.server.api.app import create_app
from osrerank.server.api.limits import ServerLimits
from osrerank.server.api.middleware import PAGE_FILES
from osrerank.server.page.judgments import Judgments
from osrerank.server.page.routes import ASSETS, MAX_DEPTH, PATH, ComparisonPage, add_page, check_pipelines
from osrerank.server.page.vector_shares import VectorShares
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.testing import CannedTransport, FunctionScorer, ManualClock
from osrerank.types import Qrels, Query
from tests.letters import Letters
from tests.rankings import response_of
from tests.waiting import wait_until

PIPELINES = {"mono": "", "mono-duo": "there is no duo model"}


@pytest.fixture
def index(tmp_path):
    client = connect(f"embedded:{tmp_path}", scorer=FunctionScorer())
    client.index(index="ponds", id="a", body={"title": "Ponds", "text": "a duck and another duck and a duck"})
    client.index(index="ponds", id="b", body={"title": "Ducks", "text": "where does a duck sleep at night"})
    client.index(index="lakes", id="c", body={"text": "a heron"}, refresh=True)
    client.indices.refresh()
    yield client
    client.close()


@pytest.fixture
def page(index):
    """A function that makes a client of an application with the page."""
    with ExitStack() as stack:

        def open_page(client=index, *, token=None, **options):
            app = create_app(RerankService(Settings.load(), FunctionScorer()), ServerLimits(), token=token)
            add_page(app, ComparisonPage(client, PIPELINES, **options))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield open_page


def ask(browser, **parameters):
    return browser.get(f"{PATH}/search", params={"q": "where does a duck sleep", "index": "ponds", **parameters})


def test_the_search_route_returns_both_orders_at_the_depth_of_the_index(page, index):
    answer = ask(page()).json()
    assert [document["doc_id"] for document in answer["documents"]] == ["b", "a"]
    assert sorted(document["before"] for document in answer["documents"]) == [1, 2]
    assert answer["applied"] is True
    assert answer["stages"][0]["inferences"] == 2
    assert (answer["stages"][0]["encoded"], answer["documents"][0]["passage"]) == (None, None)
    index.searcher.defaults = Defaults(Rerank(depth=70), {"lakes": Rerank(depth=300)})
    browser = page(indexes=("ponds", "lakes"))
    assert browser.get(f"{PATH}/config").json()["default_depth"] == ask(browser).json()["depth"] == 70
    assert ask(browser, index="lakes").json()["depth"] == MAX_DEPTH


def test_readiness_checks_vectors_only_on_request(tmp_path):
    encoder, url = Letters(), f"embedded:{tmp_path / 'letters'}"
    with connect(url, scorer=encoder) as client:
        for number in range(4):
            client.index(index="ponds", id=str(number), body={"text": f"duck {number}"}, refresh=True)
        app = create_app(RerankService(Settings.load(), encoder), ServerLimits())
        clock = ManualClock()
        add_page(app, ComparisonPage(client, PIPELINES, ("ponds", "gone")))
        app.state.find_vector_share = VectorShares(client, ("ponds", "gone"), clock=clock)
        with TestClient(app) as browser:

            def ready(**parameters):
                answer = browser.get("/ready", params=parameters)
                return answer.status_code, answer.json().get("message", "")

            wait_until(lambda: ready()[0] == 200)
            share = "only 0.0% of the documents of ponds have vectors, less than 95.0%"
            assert ready(index="ponds") == (503, f"{share}: run osrerank vectors build --index ponds")
            assert ready(index="ponds", at_least=0)[0] == 200
            client.searcher.service.load_vectors(Rerank()).build([f"duck {number}" for number in range(3)])
            assert ready(index="ponds", at_least=0.7)[0] == 503  # it was looked up just now
            clock.sleep(11)
            assert ready(index="ponds", at_least=0.7)[0] == 200
            assert ready(index="ponds", at_least=0.8)[0] == 503
            assert ready(at_least=0.8)[0] == 400
            assert ready(index="gone")[0] == ready(index="lakes")[0] == 404
            assert ready(index="ponds", at_least=2)[0] == 422


def test_readiness_names_a_missing_index_and_needs_no_vectors_for_a_cross_encoder(page):
    with TestClient(create_app(RerankService(Settings.load(), FunctionScorer()))) as browser:
        wait_until(lambda: browser.get("/ready").status_code == 200)
        answer = browser.get("/ready", params={"index": "ponds"})
    assert (answer.status_code, "this server reads no indices" in answer.json()["message"]) == (400, True)
    browser = page()
    wait_until(lambda: browser.get("/ready", params={"index": "ponds"}).status_code == 200)


def test_judgments_are_saved_as_qrels_and_read_again(page, tmp_path):
    folder = tmp_path / "judged"
    browser = page(judgments=Judgments(folder=folder))
    assert browser.get(f"{PATH}/config").json()["can_judge"] is True
    assert ask(browser).json()["judged"] is None
    for doc_id, relevance in (("a", 0), ("b", 1), ("a", 2), ("a", 0)):
        content = {"q": "where does  a duck sleep", "doc_id": doc_id, "relevance": relevance}
        assert browser.post(f"{PATH}/judge", json=content).json() == {"query_id": "page-1"}
    assert (folder / "queries.tsv").read_text() == "page-1\twhere does a duck sleep\n"
    assert read_qrels(folder / "qrels.txt").judgments == {"page-1": {"b": 1, "a": 0}}
    judged = ask(page(judgments=Judgments(folder=folder))).json()
    assert (judged["judged"]["query_id"], judged["judged"]["relevant"]) == ("page-1", 1)
    assert {document["doc_id"]: document["relevance"] for document in judged["documents"]} == {"a": 0, "b": 1}
    for doc_id in "ab":
        content = {"q": "where does a duck sleep", "doc_id": doc_id, "relevance": None}
        assert browser.post(f"{PATH}/judge", json=content).status_code == 200
    assert ask(browser).json()["judged"] is None
    assert ask(page(judgments=Judgments(folder=folder))).json()["judged"] is None


def test_given_judgments_are_not_written_but_extended(page, tmp_path):
    judgments = Judgments((Query("7", "where does a duck sleep"),), Qrels({"7": {"b": 1}}), tmp_path / "judged")
    browser = page(judgments=judgments)
    assert browser.post(
        f"{PATH}/judge", json={"q": "Where does a duck sleep", "doc_id": "a", "relevance": 0}
    ).json() == {"query_id": "7"}
    assert {document["doc_id"]: document["relevance"] for document in ask(browser).json()["documents"]} == {
        "a": 0,
        "b": 1,
    }
    assert read_qrels(tmp_path / "judged" / "qrels.txt").judgments == {"7": {"a": 0}}
    other_query = (Query("7", "another query"),)
    with pytest.raises(ConfigError, match=r"the query '7' in .*queries\.tsv differs from the one in --queries"):
        Judgments(other_query, None, tmp_path / "judged")


@pytest.mark.parametrize(
    ("content", "headers", "status", "word"),
    [
        ({"q": "duck", "doc_id": "a b", "relevance": 1}, {}, 422, "white space"),
        ({"q": " ", "doc_id": "a", "relevance": 1}, {}, 422, "q"),
        ({"q": "duck", "doc_id": "a", "relevance": 9}, {}, 422, "relevance"),
        ({"q": "duck", "doc_id": "a", "relevance": 1}, {"content-type": "text/plain"}, (415, 422), ""),
    ],
)
def test_judgments_that_cannot_be_saved_are_refused(page, tmp_path, content, headers, status, word):
    browser = page(judgments=Judgments(folder=tmp_path / "judged"))
    answer = browser.post(f"{PATH}/judge", json=content, headers=headers)
    assert answer.status_code in (status if isinstance(status, tuple) else (status,))
    assert word in answer.json()["message"]
    assert not (tmp_path / "judged").exists()


def test_judging_is_refused_without_a_judgments_file(page):
    browser = page()
    assert browser.get(f"{PATH}/config").json()["can_judge"] is False
    answer = browser.post(f"{PATH}/judge", json={"q": "duck", "doc_id": "a", "relevance": 1})
    assert (answer.status_code, "--save-judgments" in answer.json()["message"]) == (422, True)
    assert page(token="secret").post(f"{PATH}/judge", json={}).status_code == 401


@pytest.mark.parametrize(
    ("parameters", "word"),
    [
        ({"q": ""}, "q"),
        ({"q": "x" * 1001}, "q"),
        ({"depth": 0}, "depth"),
        ({"depth": 201}, "depth"),
        ({"passages": -1}, "passages"),
        ({"index": "a,b"}, "index"),
        ({"index": ".system"}, "index"),
        ({"index": "../_cat"}, "index"),
        ({"pipeline": "none"}, "none"),
    ],
)
def test_unusable_search_parameters_are_refused_by_name(page, parameters, word):
    answer = ask(page(), **parameters)
    assert answer.status_code == 422
    assert word in answer.json()["message"]


def test_a_missing_index_and_an_index_not_offered_are_named(page):
    answer = ask(page(), index="nowhere")
    assert (answer.status_code, answer.json()["message"]) == (404, "there is no index nowhere: choose another one")
    answer = ask(page(indexes=("ponds",)), index="lakes")
    assert (answer.status_code, "ponds" in answer.json()["message"]) == (404, True)


def test_an_unreachable_opensearch_is_reported_without_its_address(page):
    error = Unreachable("N/A", "https://user:secret@host", OSError("refused"))
    client = connect("http://localhost:1", scorer=FunctionScorer(), transport_class=CannedTransport, answer=error)
    browser = page(client)
    for answer in (ask(browser), browser.get(f"{PATH}/config")):
        assert "the search engine cannot be reached" in answer.text
        assert "secret" not in answer.text
    assert ask(browser).status_code == 503


def test_eight_searches_run_at_once_32_wait_and_the_next_is_refused(page):
    running, may_go_on = [], threading.Event()

    def hold(_query, _text):
        running.append(1)
        return float(may_go_on.wait(30))

    answer = response_of(["a duck"])
    browser = page(
        connect("http://localhost:1", scorer=FunctionScorer(hold), transport_class=CannedTransport, answer=answer)
    )
    searches = browser.app.state.comparison_limiter.statistics
    with ThreadPoolExecutor(40) as pool:
        answers = []
        try:
            for number in range(40):
                answers.append(pool.submit(ask, browser, q=f"duck {number}"))
                wait_until(lambda taken=number + 1: searches().borrowed_tokens + searches().tasks_waiting == taken, 20)
            refused = ask(browser)
            wait_until(lambda: len(running) == 8, 20)
        finally:
            may_go_on.set()
    assert (refused.status_code, refused.json()["error_type"]) == (429, "Overloaded")
    assert {future.result().status_code for future in answers} == {200}


def test_the_configuration_lists_indices_and_the_root_redirects_to_the_page(page):
    offered = page().get(f"{PATH}/config").json()
    assert offered["indexes"] == ["lakes", "ponds"]
    assert {pipeline["name"]: pipeline["reason"] for pipeline in offered["pipelines"]} == PIPELINES
    assert page(indexes=("ponds",)).get(f"{PATH}/config").json()["indexes"] == ["ponds"]
    answer = page().get("/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, PATH)
    assert "content-security-policy" not in page().get("/health").headers


def test_pipelines_without_a_model_are_refused_with_the_reason():
    class Bare(RerankService):
        def warm_up(self, options=None, **_bounds):
            if options.pipeline == "vectors-mono-duo":
                raise ModelLoadError("no such model")

    reasons = check_pipelines(Bare(Settings.load(), FunctionScorer()))
    assert (next(iter(reasons)), reasons["mono"], reasons["vectors-mono-duo"]) == ("mono", "", "no such model")
    reasons = check_pipelines(Bare(Settings.load(), Letters()))
    assert (next(iter(reasons)), reasons["vectors"]) == ("vectors", "")
    assert "vectors-mono needs a cross-encoder" in reasons["vectors-mono"]


@pytest.mark.parametrize("path", [PATH, f"{PATH}/page.js", f"{PATH}/search", f"{PATH}/config", f"{PATH}/nothing"])
def test_every_answer_of_the_page_has_security_headers(page, path):
    headers = page(token="t").get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers.get_list("cache-control") == (
        ["no-store"] if "/search" in path or "/config" in path else ["no-cache"]
    )


def test_the_token_protects_the_pages_searches_but_not_the_pages_files(page):
    browser = page(token="sesame")
    assert {PATH, *(f"{PATH}/{name}" for name in ASSETS if name != "page.html")} == PAGE_FILES
    for path in PAGE_FILES:
        assert browser.get(path).status_code == 200
    assert ask(browser).status_code == 401
    assert browser.get(f"{PATH}/config").status_code == 401
    browser.headers["Authorization"] = "Bearer sesame"
    assert ask(browser).status_code == 200
