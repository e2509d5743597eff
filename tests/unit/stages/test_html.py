"""Texts that are HTML are read without scripts, styles, tags and character references; all others as they are."""

import html
import random

import pytest

from osrerank.options.passages import AUTO_PASSAGES, Passages
from osrerank.reranker import Reranker
from osrerank.stages.html import is_html, model_text, without_html, without_markup
from osrerank.stages.passages import leaves_words_out, prepare_text, split_into_passages
from osrerank.testing import FunctionScorer
from osrerank.types import Candidate, LongText, Section

WORDS = ["blood", "pressure", "a < b", "AT&T", "salt", "Ärzte", "10 > 9", "heart", '"quoted"', "it's"]
BLOCKS = ["p", "div", "td", "li", "h2", "section", "P"]
INLINE = ["b", "em", "span", "a", "code"]
UNSEEN = [
    "<script>var a='<p>'; if (a < b) { x(); }</script>", "<style>p { color: red }</style>", "<!-- a > b -->",
    '<img src="x.png" alt="a > b">', "<br/>", "<SCRIPT src=x></SCRIPT >", "<hr>", "<![if !supportLists]>",
    '<div title="it\'s">', "<td\n  colspan='2'>",
]  # fmt: skip
PLAIN = [
    "a < b and c > d", "if (a<b && c>d) return List<String>();", "Map<String, List<Object>> x = new HashMap<>();",
    "<?xml version='1.0'?><root><item>1</item><item>2</item><item>3</item></root>", "</end> of </a story",
    "Text <ref name=Plutarch2/> of a <ref>page</ref> of <ref>Wikipedia</ref> with <ref>notes</ref>",
    "Use <strong>important</strong> to make it bold.", "<or=10 cigarettes/d), moderate (>", "<3 </3 <3", "", "<p>",
    "std::vector<int> v; template <typename T> class Option {};", "&lt;p&gt;text&lt;/p&gt; &amp; more",
]  # fmt: skip


def candidate_of(text, title=""):
    sections = tuple(Section(name, value) for name, value in (("title", title), ("text", text)) if value)
    return Candidate("d", " ".join(section.text for section in sections), 1.0, 1, (), "", sections)


def drawn_html(draw, count):
    """Return an HTML text, and the words that a reader sees of it."""
    parts, words = [f"<{draw.choice(BLOCKS)} class='x'>"], []
    for _ in range(count):
        word = draw.choice(WORDS)
        words.append(word)
        tag = draw.choice([*BLOCKS, *INLINE])
        parts += [f"<{tag}>{html.escape(word)}</{tag}>", " " + draw.choice([*UNSEEN, "", "\n"])]
    return "".join(parts), " ".join(words)


@pytest.mark.parametrize("seed", range(60))
def test_a_model_reads_the_visible_words_of_html(seed):
    draw = random.Random(seed)
    text, words = drawn_html(draw, draw.randint(3, 80))
    assert is_html(text)
    assert len(without_markup(text)) == len(text)
    assert model_text(candidate_of(text)) == words
    (passage, span), *further = split_into_passages(candidate_of(text), AUTO_PASSAGES)
    assert (passage, span, further) == (words, None, [])


@pytest.mark.parametrize("seed", range(30))
def test_passages_of_html_have_their_spans_in_the_source(seed):
    draw = random.Random(seed)
    text, words = drawn_html(draw, draw.randint(400, 700))
    candidate = candidate_of(text, title="Blood pressure")
    passages = split_into_passages(candidate, AUTO_PASSAGES)
    assert " ".join(passage.removeprefix("Blood pressure ") for passage, _span in passages) == words
    for passage, span in passages:
        within = without_markup(text)[span.start : span.end]
        assert " ".join(html.unescape(within).split()) == passage.removeprefix("Blood pressure ")
    assert not leaves_words_out(candidate, [span for _passage, span in passages], AUTO_PASSAGES)


@pytest.mark.parametrize("text", PLAIN)
def test_texts_that_are_not_html_are_read_unchanged(text):
    candidate = candidate_of(text)
    assert not is_html(text)
    assert without_html(candidate) is candidate
    assert prepare_text(candidate, AUTO_PASSAGES) == model_text(candidate) == text


@pytest.mark.parametrize("text", ["<p>one</p>", "\n<!-- x --><b>one</b>", "<!DOCTYPE html><title>one</title>",
                                  "one <ul><li>two</li><li>three</li></ul>"])  # fmt: skip
def test_a_first_tag_or_three_closing_tags_make_a_text_html(text):
    assert is_html(text)


def test_html_and_its_text_have_different_cache_keys():
    candidate = candidate_of("<p>one</p>")
    key = prepare_text(candidate, AUTO_PASSAGES)
    assert isinstance(key, LongText)
    assert list(key.cut()) == [("one", None)]


def test_a_title_stands_without_markup_before_each_passage():
    candidate = candidate_of("<p>" + "word " * 200 + "</p>", title="<b>Salt &amp; blood</b>")
    assert {passage[:17] for passage, _span in split_into_passages(candidate, Passages())} == {"Salt & blood word"}


@pytest.mark.parametrize("markup", ["<!--", "<a ", "</", "<a b='", "<script>", "<script ", "<a b=\"'", "<!", "<!-- > ",
                                  "<a b='> ", "</p ", "&#", "<p"])  # fmt: skip
def test_unclosed_markup_is_read_in_time_that_grows_with_its_length(markup):
    text = f"<p></p>{markup * 20_000}"  # html.parser takes minutes
    assert is_html(text)
    assert len(without_markup(text)) == len(text)


@pytest.mark.parametrize("passages", ["off", "maxp"])
def test_a_scorer_gets_text_without_markup_and_the_caller_the_source(passages):
    scored = []
    text = "<script>var a = 1;</script><p>Salt &amp; blood</p>"
    scorer = FunctionScorer(lambda _query, document: scored.append(document) or 1.0)
    with Reranker(scorer=scorer, passages=passages) as r:
        (ranked,) = r.rank("salt", [text])
    assert scored == ["Salt & blood"]
    assert ranked.text == text


@pytest.mark.parametrize("model", [None, "osrerank/monobert-l6"])
@pytest.mark.parametrize("passages", ["auto", "off", "maxp"])
def test_html_without_words_is_not_scored_and_stays_below(model, passages):
    texts = ["<script>var salt;</script>", "Trains", "<div><img alt='salt'>&nbsp;</div>", "<p>Salt</p>"]
    with Reranker(model, passages=passages) as reranker:
        ranked = reranker.rank("salt", texts)
    assert [(text.doc_id, text.score is None) for text in ranked] == [(3, False), (1, False), (0, True), (2, True)]
