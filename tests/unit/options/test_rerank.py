"""The options of a search: their forms, and what is refused, by name."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.options.pairs import Pairs
from osrerank.options.passages import Passages
from osrerank.options.rm3 import Rm3
from osrerank.options.traffic import Traffic

BM25 = {"with": {"pipeline": "none"}, "key": "s"}
MALFORMED = [
    ({"depth": 0}, "depth"),
    ({"depth": True}, "depth"),
    ({"depth": "ten"}, "depth"),
    ({"depth": 10_001}, "depth"),
    ({"depth": "Auto"}, "depth"),
    ({"fields": []}, "fields"),
    ({"fields": [1]}, "fields"),
    ({"pipeline": "quattro"}, "pipeline"),
    ({"deadline_ms": 0}, "deadline_ms"),
    ({"on_failure": "ignore"}, "on_failure"),
    ({"min_score": 1.5}, "min_score"),
    ({"traffic": {"shadow": "yes"}}, "traffic.shadow"),
    ({"traffic": {"shadow": True}, "interleave": {"with": {}, "key": "s"}}, "traffic.shadow"),
    ({"interleave": BM25, "min_score": 0.5}, "min_score"),
    ({"interleave": BM25, "cutoff": {"precision": 0.9}}, "cutoff"),
    ({"interleave": {"with": {"rm3": True}, "key": "s"}}, "interleave.with.rm3"),
    ({"interleave": {"with": {"min_score": 0.5}, "key": "s"}}, "interleave.with.min_score"),
    ({"interleave": {"with": {"depth": 0}, "key": "s"}}, "depth"),
    ({"interleave": {"with": {}, "key": ""}}, "interleave.key"),
    ({"interleave": {"with": {}}}, "interleave"),
    ({"interleave": True}, "interleave"),
    ({"traffic": {"share": 1.1}}, "traffic.share"),
    ({"traffic": {"share": True}}, "traffic.share"),
    ({"traffic": {"key": ""}}, "traffic.key"),
    ({"traffic": 0.1}, "traffic"),
    ({"separator": None}, "separator"),
    ({"query": 7}, "query"),
    ({"duo_depth": -1}, "duo_depth"),
    ({"duo_depth": 1001}, "duo_depth"),
    ({"duo_depth": True}, "duo_depth"),
    ({"pairs": "mean"}, "pairs.aggregation"),
    ({"pairs": {"aggregation": "sample", "sample_size": 0}}, "pairs.sample_size"),
    ({"pairs": {"seed": 1.5}}, "pairs.seed"),
    ({"pairs": 7}, "pairs"),
    ({"passages": "best"}, "passages.aggregation"),
    ({"passages": {"limit": 0}}, "passages.limit"),
    ({"passages": {"stride": 151}}, "passages.stride"),
    ({"passages": {"k": True}}, "passages.k"),
    ({"passages": {"policy": "last"}}, "passages.policy"),
    ({"passages": {"seed": 0.5}}, "passages.seed"),
    ({"passages": {"least_words": -1}}, "passages.least_words"),
    ({"passages": {"aggregation": "auto", "limit": 3}}, "passages.aggregation"),
    ({"passages": {"title_fields": [1]}}, "passages.title_fields"),
    ({"passages": {"title_fields": None}}, "passages.title_fields"),
    ({"passages": {"title_fields": False}}, "passages.title_fields"),
    ({"passages": 3}, "passages"),
    ({"rm3": {"terms": 0}}, "rm3.terms"),
    ({"rm3": {"weight": 1.5}}, "rm3.weight"),
    ({"rm3": {"field": ""}}, "rm3.field"),
    ({"rm3": "yes"}, "rm3"),
    ({"sentences": {"a": 1.5}}, "sentences.a"),
    ({"sentences": {"weights": []}}, "sentences.weights"),
    ({"sentences": {"weights": [1, 2]}}, "sentences.weights"),
    ({"sentences": {"scores": "rank"}}, "sentences.scores"),
    ({"sentences": {"max_words": 0}}, "sentences.max_words"),
    ({"sentences": {"drop_tail": "no"}}, "sentences.drop_tail"),
    ({"sentences": {"language": ""}}, "sentences.language"),
    ({"sentences": {"language": "ja", "splitter": "punkt"}}, "sentences.language"),
    ({"sentences": {"splitter": "nltk"}}, "sentences.splitter"),
    ({"sentences": {"chunks": "pieces"}}, "sentences.chunks"),
    ({"sentences": {"chunks": "tokens", "drop_tail": True}}, "sentences.drop_tail"),
    ({"sentences": {"limit": 0}}, "sentences.limit"),
    ({"sentences": 0.5}, "sentences"),
    ({"sentences": True, "blend_weight": 1}, "sentences"),
]
UNKNOWN = [
    ({"depht": 10}, "depht"),
    ({"pairs": {"m": 3}}, "pairs.m"),
    ({"passages": {"size": 3}}, "passages.size"),
    ({"rm3": {"docs": 3}}, "rm3.docs"),
    ({"traffic": {"shares": 1}}, "traffic.shares"),
    ({"sentences": {"alpha": 0.5}}, "sentences.alpha"),
]


@pytest.mark.parametrize(("options", "named"), [*MALFORMED, *UNKNOWN])
def test_a_malformed_option_is_named(options, named):
    is_short = (options, named) in UNKNOWN or named.startswith("interleave.")
    escaped = named.rpartition(".")[2] if is_short else named.replace(".", r"\.")
    with pytest.raises(ConfigError, match=escaped) as caught:
        Rerank.of(options, Rerank())
    assert caught.value.setting == f"rerank.{named}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"rm3": {"field": 5}}, "rerank option rm3.field is 5; it must be a field's name"),
        ({"cutoff": {"precision": 3}}, "rerank option cutoff.precision is 3; it must be a number above 0"),
        (
            {"sentences": {"max_words": 0}},
            "rerank option sentences.max_words is 0; it must be a whole number of at least 1",
        ),
        ({"passages": {"aggregation": "best"}}, "passages.aggregation is 'best'; it must be \"maxp\" or "),
        ({"passages": {"seed": "x"}}, "rerank option passages.seed is 'x'; it must be a whole number"),
    ],
)
def test_an_unusable_option_is_shown_with_the_values_it_may_have(options, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        Rerank.of(options, Rerank())


def test_an_open_depth_has_bounds():
    options = Rerank(depth="auto")
    assert (options.min_depth, options.max_depth) == (100, 1000)
    assert (Rerank(depth=7).min_depth, Rerank(depth=7).max_depth) == (7, 7)


def test_a_dict_of_options_overrides_the_defaults():
    defaults = Rerank(depth=7, fields=("body",))
    assert Rerank.of({"depth": 9, "fields": "title"}, defaults) == Rerank(depth=9, fields=("title",))
    assert Rerank.of(True, defaults) is defaults
    assert Rerank.of(False, defaults) is None
    with pytest.raises(ConfigError, match="'yes'"):
        Rerank.of("yes", defaults)


def test_a_search_adds_its_key_to_the_share_of_the_settings_file():
    defaults = Rerank(traffic=Traffic(0.1, shadow=True))
    assert Rerank.of({"traffic": {"key": "s1"}}, defaults).traffic == Traffic(0.1, "s1", shadow=True)
    assert Rerank.of({"traffic": None}, defaults).traffic is None


def test_passages_and_rm3_are_read_from_all_their_forms():
    assert Rerank(passages="kmaxavgp").passages == Passages(aggregation="kmaxavgp")
    titled = Passages(limit=5, title_fields=("headline",))
    assert Rerank(passages={"limit": 5, "title_fields": ["headline"]}).passages == titled
    assert Rerank(passages=True).passages == Passages()
    assert Rerank(passages=False).passages is None
    assert Rerank().passages == Rerank(passages="auto").passages == Rerank(passages={"aggregation": "auto"}).passages
    assert Rerank().passages == "auto"
    assert Rerank(passages="off").passages is None
    assert hash(Rerank(passages="maxp"))
    assert Rerank(rm3=True).rm3 == Rm3()
    assert Rerank(rm3={"terms": 20}).rm3 == Rm3(terms=20)
    assert Rerank(rm3=False).rm3 is None


IDS = ("a", "b", "c")


def test_all_pairs_of_candidates_are_compared_by_default():
    assert Pairs().choose_rivals(IDS) == [[1, 2], [0, 2], [0, 1]]
    assert Pairs().choose_rivals(("a",)) == [[]]
    assert Pairs().choose_rivals(()) == []
    for size in (2, 99):  # a draw of all others or more
        assert Pairs("sample", sample_size=size).choose_rivals(IDS) == Pairs().choose_rivals(IDS)


def test_rivals_are_drawn_without_replacement_and_never_the_candidate_itself():
    ids = [f"d{index}" for index in range(12)]
    for index, drawn in enumerate(Pairs("sample", sample_size=5).choose_rivals(ids)):
        assert len(set(drawn)) == len(drawn) == 5
        assert index not in drawn
    draws = [Pairs("sample", sample_size=5, seed=seed).choose_rivals(ids) for seed in (0, 0, 1)]
    assert draws[0] == draws[1] != draws[2]


@given(st.permutations(range(8)), st.integers(1, 6))
def test_drawn_rivals_do_not_depend_on_the_order_of_candidates(order, size):
    ids = [f"d{index}" for index in range(8)]
    pairs = Pairs("sample", sample_size=size, seed=3)
    straight = {ids[i]: {ids[j] for j in js} for i, js in enumerate(pairs.choose_rivals(ids))}
    reordered_ids = [ids[index] for index in order]
    reordered = {
        reordered_ids[i]: {reordered_ids[j] for j in js} for i, js in enumerate(pairs.choose_rivals(reordered_ids))
    }
    assert reordered == straight


def test_option_groups_are_read_from_a_name_or_a_dict():
    assert Pairs.of(None) == Pairs.of(True) == Pairs()
    assert Pairs.of("binary") == Pairs("binary")
    assert Pairs.of({"aggregation": "sample", "sample_size": 3, "seed": 9}) == Pairs("sample", 3, 9)
