"""The comparison page in a browser: what people see, press and are kept safe from."""

import re
import threading
from urllib.parse import urlencode

import pytest

from osrerank import Rerank, connect
from osrerank.options.defaults import Defaults
from osrerank.server.page.judgments import Judgments
from osrerank.server.page.routes import ComparisonPage
from osrerank.testing import FunctionScorer
from osrerank.types import Qrels, Query
from tests import servers
from tests.http_server import running

pytestmark = pytest.mark.integration

QUIET = ("background-networking", "component-update", "sync", "gpu", "quic")
FLAGS = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in QUIET)]
QUERY = "where does a duck sleep"
HOSTILE = (
    "<script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'><svg onload='window.hurt = 3'>"
    "<a href='javascript:window.hurt = 4'>duck</a> \u202eesrever kcud\u2066 " + "duck" * 400
)
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def by_number(_query, text):
    """Score a pond by its number, so that some move up and some down."""
    return float(int((re.findall(r"\d+", text) or ["0"])[-1]) % 7)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=servers.chromium(), args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    scorer = FunctionScorer(by_number)
    client = connect(f"embedded:{tmp_path_factory.mktemp('page')}", scorer=scorer, duo_scorer=scorer)
    for number in range(30):
        text = "duck " * (31 - number) + ("where does it sleep " if number % 3 == 0 else "") + f"pond {number}"
        client.index(index="ponds", id=f"d{number}", body={"title": f"Pond {number}", "text": text})
    client.index(index="hostile", id="<b>id</b>", body={"title": f"<i>title</i> {HOSTILE}", "text": HOSTILE})
    client.indices.refresh()
    yield client
    client.close()


@pytest.fixture(scope="module")
def comparison(index):
    judgments = Judgments((Query("1", QUERY), Query("2", "pond")), Qrels({"1": {"d27": 1, "d0": 0}}))
    return ComparisonPage(index, {"mono": "", "mono-duo": ""}, judgments=judgments)


@pytest.fixture(scope="module")
def url(browser, comparison):
    with running(FunctionScorer(), comparison=comparison) as address:
        yield f"{address}/ui"


@pytest.fixture
def open_page(browser, url):
    """A function that opens the page; at the end nothing may have gone wrong in it, or elsewhere."""
    contexts, wrong = [], []

    def opener(address=None, *, viewport=DESKTOP, wait=True, **search):
        base = address or url
        context = browser.new_context(viewport=viewport, **search.pop("context", {}))
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
        origin = base.removesuffix("/ui")
        page.on("request", lambda request: None if request.url.startswith(origin) else wrong.append(request.url))
        page.goto(f"{base}?{urlencode(search)}" if search else base)
        if wait:
            page.locator("#outcome:not([hidden]), #empty:not([hidden])").first.wait_for()
        return page

    yield opener
    for context in contexts:
        context.close()
    assert wrong == []


def ids(page, side):
    return page.locator(f"#{side} .id").all_inner_texts()


def settle(page):
    page.locator("#results[aria-busy=false]").wait_for()


def test_the_page_shows_both_orders_of_a_search(open_page):
    page = open_page()
    assert page.locator("#index").input_value() == "hostile"
    page.get_by_label("Index").fill("ponds")
    page.get_by_role("searchbox", name="Query").fill(QUERY)
    page.get_by_role("button", name="Search").click()
    page.locator("#after .row").first.wait_for()
    before, after = ids(page, "before"), ids(page, "after")
    assert len(before) == len(after) == 10
    assert before != after
    assert page.locator("#lines path").count() >= 10
    assert "30 inferences" in page.locator("#figures").inner_text()
    assert re.search(r"30 documents compared, \d+ moved by mono, in", page.locator("#status").inner_text())
    assert page.title() == f"{QUERY} | osrerank"


def test_the_words_of_the_query_are_marked_as_the_engine_marks_them(open_page):
    page = open_page(q="pond 3 sleeping", index="ponds")
    terms = set(page.locator("#before .row .term").all_inner_texts())
    assert terms == {"Pond", "pond", "3"}  # the engine's analyzer: `sleep` is not `sleeping` here
    assert page.locator("#after .title .term").count() >= 10


def test_a_blend_shows_both_parts_of_a_score(open_page, index):
    before = index.searcher.defaults
    index.searcher.defaults = Defaults(Rerank(blend="linear", blend_weight=3.0))
    try:
        with running(FunctionScorer(), comparison=ComparisonPage(index, {"mono": ""})) as address:
            page = open_page(f"{address}/ui", q=QUERY, index="ponds")
            assert page.locator("#after-how").inner_text() == "by the model's score and BM25's together"
            added = page.locator("#after .score small:nth-of-type(2)").all_inner_texts()
            assert len(added) == 10
            assert all(re.fullmatch(r"BM25 \+[0-3]\.\d", added_hit) for added_hit in added)
    finally:
        index.searcher.defaults = before


def test_the_page_shows_median_and_95th_percentile_of_both_times(open_page):
    page = open_page(q=QUERY, index="ponds")
    assert "median" not in page.locator("#figures").inner_text()
    for query in ("pond", "duck sleep"):
        page.get_by_role("searchbox", name="Query").fill(query)
        page.get_by_role("button", name="Search").click()
        page.locator("#status", has_text="documents compared").wait_for()
        settle(page)
        assert page.title() == f"{query} | osrerank"
    notes = page.locator("#figures small").all_inner_texts()
    assert sum(bool(re.fullmatch(r"median .+ ms, p95 .+ ms of 3", note)) for note in notes) == 2
    page.get_by_label("Depth").fill("20")
    page.get_by_label("Depth").press("Enter")
    page.locator("#figures", has_text="20 compared").wait_for()
    assert "median" not in page.locator("#figures").inner_text()  # of searches of one kind


def test_documents_are_judged_by_a_click(open_page, index, tmp_path):
    comparison = ComparisonPage(index, {"mono": ""}, judgments=Judgments(folder=tmp_path))
    with running(FunctionScorer(), comparison=comparison) as address:
        page = open_page(f"{address}/ui", q=QUERY, index="ponds")
        row = page.locator("#after .row").nth(2)
        row.wait_for()
        doc_id = row.locator(".id").inner_text()
        row.get_by_role("button", name=": relevant", exact=False).first.click()
        page.locator("#after .row.relevant").wait_for()
        assert page.evaluate("document.activeElement.dataset.relevance") == "1"
        assert "nDCG@10" in page.locator("#figures").inner_text()
        assert (tmp_path / "qrels.txt").read_text() == f"page-1 0 {doc_id} 1\n"
        assert page.locator("#before .judge[aria-pressed=true]").count() <= 1
        row.locator(".judge[aria-pressed=true]").click()
        page.locator("#after .row.relevant").wait_for(state="detached")
        assert (tmp_path / "qrels.txt").read_text() == ""


def test_the_address_holds_the_search_and_back_goes_back(open_page):
    page = open_page(q=QUERY, index="ponds", depth=20)
    assert page.get_by_label("Depth").input_value() == "20"
    assert "20 compared" in page.locator("#figures").inner_text()
    page.get_by_label("mono-duo").check(force=True)
    page.locator("#figures", has_text="380 inferences").wait_for()
    assert page.locator("#after-how").inner_text() == "by the model's score, the first ones by pairs"
    assert "pipeline=mono-duo" in page.url
    page.get_by_role("searchbox").fill("pond")
    page.get_by_role("searchbox").press("Enter")
    page.locator("#status", has_text="compared").wait_for()
    assert "q=pond" in page.url
    page.go_back()
    page.go_back()
    page.locator("#figures", has_not_text="duo").wait_for()
    assert page.get_by_role("searchbox").input_value() == QUERY
    assert page.locator("input[value=mono]").is_checked()


def test_the_page_shows_more_rows_on_request(open_page):
    page = open_page(q=QUERY, index="ponds")
    page.get_by_role("button", name="Show 10 more of 20").click()
    assert page.locator("#before .row").count() == page.locator("#after .row").count() == 20
    assert page.evaluate("document.activeElement.dataset.rank") == "11"


def test_the_passage_that_decided_is_marked(open_page):
    page = open_page(q=QUERY, index="ponds", passages="4")
    assert page.locator("#passages").input_value() == "4"
    page.locator("#after mark").first.wait_for()
    assert page.locator("#before mark").count() == 0
    assert re.fullmatch(r"read: characters [\d,]+\u2013[\d,]+", page.locator("#after .read").first.inner_text())
    assert page.locator("#before .read").count() == 0


def test_judged_documents_are_marked_and_measured(open_page):
    page = open_page()
    page.get_by_label("Index").fill("ponds")
    page.get_by_label("Queries", exact=True).select_option(QUERY)
    page.locator("#figures", has_text="nDCG@10").wait_for()
    assert "1 of 1" in page.locator("#figures .judged").last.inner_text()
    relevant = page.locator("#after .row.relevant")
    assert relevant.locator(".id").inner_text() == "d27"
    assert "✓ relevant" in relevant.inner_text()
    assert "not relevant" in page.locator("#before .row", has_text="Pond 0\n").first.inner_text()


def test_hostile_texts_of_documents_are_shown_as_text(open_page):
    page = open_page(q="duck esrever", index="hostile")
    assert page.locator("#after .id").inner_text() == "<b>id</b>"
    assert page.locator("#after .title").inner_text().startswith("<i>title</i> <script>")
    page.locator("#after .open-text").click()
    assert HOSTILE[:100] in page.locator("#after .text").inner_text()
    assert page.evaluate("window.hurt") is None
    assert page.locator("#columns script, #columns img, #columns a, #columns i, #columns b").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    isolation = page.locator("#after .text").evaluate("node => getComputedStyle(node).unicodeBidi")
    assert isolation == "isolate"


def test_a_hostile_address_is_shown_as_text(open_page):
    page = open_page(q="<img src=x onerror='window.hurt=1'>duck", index="ponds", passages="<b>", wait=False)
    page.locator("#notice .notice", has_text="passages").wait_for()
    assert page.evaluate("window.hurt") is None
    assert page.locator("#notice img, form b").count() == 0


def test_the_page_can_be_used_by_keyboard_alone(open_page):
    page = open_page(q=QUERY, index="ponds")
    searches = []
    page.on("request", lambda request: searches.append(request.url) if "/ui/search" in request.url else None)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the results"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "results"
    page.wait_for_timeout(200)
    assert searches == []
    page.keyboard.press("Tab")
    name = page.evaluate("document.activeElement.getAttribute('aria-label')")
    rank = int(re.match(r"Reranked to (\d+)", name).group(1))
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.closest('ol').id") == "after"
    assert page.evaluate("Number(document.activeElement.dataset.rank)") == rank
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("Control+A")
    page.keyboard.type("pond")
    page.keyboard.press("Enter")
    page.locator("#status", has_text="compared").wait_for()
    assert "q=pond" in page.url


def test_every_control_of_the_page_has_a_name(open_page):
    page = open_page(q=QUERY, index="ponds")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("input, select, button")].filter((one) =>
            !(one.labels?.length || one.ariaLabel || one.textContent.trim())).map((one) => one.outerHTML)"""
    )
    assert nameless == []
    assert page.locator("[role=status][aria-live=polite]").count() == 1
    assert page.evaluate("document.documentElement.lang") == "en"


def luminance(color):
    channels = [int(match) / 255 for match in re.findall(r"\d+", color)[:3]]
    linear = [channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4 for channel in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(front, back):
    """WCAG 2.2's contrast ratio."""
    light, dark = sorted((luminance(front), luminance(back)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_enough_contrast_in_light_and_dark(open_page, scheme):
    page = open_page(q=QUERY, index="ponds", passages="4", context={"color_scheme": scheme})
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(paper) < 0.1) == (scheme == "dark")
    after = ("#after .title", "#after .text", "#after .id", "#after mark")
    for selector in (*after, ".move.up", ".move.down", ".figures dt", ".badge"):
        colors = "node => [getComputedStyle(node).color, getComputedStyle(node).backgroundColor]"
        front, back = page.locator(selector).first.evaluate(colors)
        assert contrast(front, paper if back == "rgba(0, 0, 0, 0)" else back) >= 4.5, selector


def test_a_phone_shows_one_order_at_a_time(open_page):
    page = open_page(q=QUERY, index="ponds", passages="4", viewport=PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("#after").is_visible()
    assert not page.locator("#before").is_visible()
    page.get_by_role("button", name="BM25", exact=True).click()
    assert page.locator("#before").is_visible()
    assert not page.locator("#after").is_visible()
    page.locator("#before .move").first.click()
    assert page.locator("#after").is_visible()


def test_the_page_names_a_missing_index_and_says_that_no_hits_were_found(open_page):
    page = open_page(q=QUERY, index="nowhere", wait=False)
    page.get_by_role("alert").filter(has_text="there is no index nowhere").wait_for()
    assert not page.locator("#outcome").is_visible()
    page = open_page(q="zebra", index="ponds")
    assert "No document of ponds matches" in page.locator("#empty").inner_text()
    assert page.locator("#status").inner_text() == "No hits."


def test_the_page_says_that_the_model_failed(open_page, index, tmp_path):
    client = connect(f"embedded:{tmp_path}", scorer=FunctionScorer(broken=True))
    client.index(index="ponds", id="a", body={"text": "a duck"}, refresh=True)
    with running(FunctionScorer(), comparison=ComparisonPage(client, {"mono": ""})) as address:
        page = open_page(f"{address}/ui", q="duck", index="ponds")
        page.get_by_role("alert").filter(has_text="Not reranked: mono: this scorer is broken on purpose").wait_for()
        assert ids(page, "before") == ids(page, "after") == ["a"]
    client.close()


def test_the_page_shows_that_a_search_is_running(open_page, tmp_path):
    gate = threading.Event()
    client = connect(f"embedded:{tmp_path}", scorer=FunctionScorer(lambda *_: float(gate.wait(30))))
    client.index(index="ponds", id="a", body={"text": "a duck"}, refresh=True)
    with running(FunctionScorer(), comparison=ComparisonPage(client, {"mono": ""})) as address:
        page = open_page(f"{address}/ui", q="duck", index="ponds", wait=False)
        page.locator("#progress", has_text="Searching").wait_for()
        assert page.locator("#results").get_attribute("aria-busy") == "true"
        gate.set()
        settle(page)
        assert ids(page, "after") == ["a"]
        assert not page.locator("#progress").is_visible()
    client.close()


def test_the_token_is_asked_for_and_kept_in_the_tab(open_page, comparison):
    with running(FunctionScorer(), token="sesame", comparison=comparison) as address:
        page = open_page(f"{address}/ui", q=QUERY, index="ponds", wait=False)
        page.get_by_label("This server needs a token").fill("wrong")
        page.get_by_role("button", name="Use it").click()
        page.get_by_role("alert").filter(has_text="The token is wrong").wait_for()
        page.get_by_label("This server needs a token").fill("sesame")
        page.get_by_role("button", name="Use it").click()
        page.locator("#after .row").first.wait_for()
        assert "sesame" not in page.url
        page.reload()
        page.locator("#after .row").first.wait_for()
        assert page.evaluate("localStorage.length") == 0
        assert page.context.cookies() == []
