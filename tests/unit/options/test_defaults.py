"""The settings file: options of every index, which names hold for what a caller writes, and who is in a share."""

import pytest

from osrerank import Rerank
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.index_names import match_names
from osrerank.options.traffic import Traffic
from osrerank.settings import Settings

FILE = """
[rerank]
depth = 50
fields = ["headline", "body"]

[index."articles*".rerank]
depth = 20
query_fields = ["headline^2", "body"]
passages = { aggregation = "kmaxavgp", title_fields = ["headline"] }
"""


@pytest.fixture
def load(tmp_path):
    """Return a function from a settings file's content to its settings and options."""

    def loaded(content):
        (tmp_path / "osrerank.toml").write_text(content, "utf-8")
        settings = Settings.load(settings_file=tmp_path / "osrerank.toml")
        return settings, Defaults.load(settings)

    return loaded


def test_each_index_has_its_default_options(load):
    _, defaults = load(FILE)
    general = Rerank(depth=50, fields=("headline", "body"))
    passages = {"aggregation": "kmaxavgp", "title_fields": ("headline",)}
    articles = Rerank(depth=20, fields=("headline", "body"), query_fields=("headline^2", "body"), passages=passages)
    assert (
        defaults.options_for("other")
        == defaults.options_for(None)
        == defaults.options_for("other,articles-1")
        == general
    )
    assert defaults.options_for("articles-1") == defaults.options_for(["articles-1", "articles-2"]) == articles


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("[rerank]\ndepht = 1", "depht"),
        ("[rerank]\ndepth = 'ten'", "depth"),
        ("[index.a.rerank]\ndepth = 0", "index.'a'.rerank"),
        ("[reranking]\ndepth = 1", "reranking"),
        ("not toml", "not TOML"),
        ("index = 5", "'index'"),
        ("[index]\nx = 5", "'index.x'"),
        ("[index.a]\ndepth = 5", "'index.a.depth'"),
        ('[index."a*"]\nmodle = "x"', r"'index.a\*.modle'.*\[index.NAME\] with a model"),
        ("[index.a]\nmodel = 5", r"\[index.'a'\] model is 5; it must be a model's name"),
        ("[index.a]\nmodel = ' '", r"\[index.'a'\] model is ' '"),
        ("http = 5", r"toml \[http\]"),
        ("[http]\nkey = 'x'", r"toml \[http\] key: there is no such key; the keys are url, dialect, scores, batch"),
        ("[http]\nbatch = '7'", r"toml \[http\] batch: "),
        ("[http]\ndialect = 'cohere'", r"toml \[http\] dialect: .*'cohere-v1', 'cohere-v2'"),
    ],
)
def test_a_malformed_settings_file_is_named(load, content, named):
    with pytest.raises(ConfigError, match=named) as caught:
        load(content)
    assert "osrerank.toml" in str(caught.value)


def test_models_and_options_of_an_index_are_looked_up_separately(load):
    content = '[index."shop-*".rerank]\ndepth = 7\n[index."shop-de*"]\nmodel = "german"\n[index.a]\nmodel = "b"\n'
    settings, defaults = load(content)
    assert (defaults.options_for("shop-de").depth, defaults.models_of("shop-de")) == (7, {"german"})
    assert (defaults.options_for("shop-fr").depth, defaults.models_of("shop-fr")) == (7, {None})
    assert defaults.models_of("a,shop-de1") == {"b", "german"}
    assert Defaults.load(settings, model="mine").models_of("a") == {None}


def test_an_empty_table_of_an_index_changes_nothing(load):
    _, defaults = load('[index.a]\n# model = "mine"\n')
    assert (defaults.options_for("a"), defaults.models_of("a")) == (Rerank(), {None})


def test_the_longest_index_pattern_wins(load):
    content = '[index."a*".rerank]\ndepth = 1\n[index."ab*".rerank]\ndepth = 2\n[index.abc.rerank]\ndepth = 3\n'
    _, defaults = load(content)
    assert [defaults.options_for(index).depth for index in ("a1", "ab1", "abc", "abcd")] == [1, 2, 3, 2]


def test_a_missing_settings_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Defaults.load(Settings.load(settings_file=tmp_path / "none.toml"))


def test_traffic_may_be_a_default_but_a_session_key_may_not(load):
    _, defaults = load('[rerank.traffic]\nshadow = true\nshare = 0.1\n\n[index."shop*".rerank.traffic]\nshare = 1\n')
    assert defaults.base == Rerank(traffic=Traffic(0.1, shadow=True))
    assert defaults.options_for("shop-de") == Rerank(traffic=Traffic(1, shadow=True))
    assert {defaults.without_traffic().options_for(name) for name in ("notes", "shop-de")} == {Rerank()}
    with pytest.raises(ConfigError, match=r"traffic\.key identifies one session, so it cannot be a default"):
        Defaults(Rerank(traffic=Traffic(key="s1")))


KEYS = [f"user-{number}" for number in range(10_000)]


def test_a_share_has_its_part_of_keys_and_a_larger_share_includes_a_smaller() -> None:
    tenth, third = ({key for key in KEYS if Traffic(share, key).is_chosen} for share in (0.1, 0.3))
    assert 900 < len(tenth) < 1100
    assert tenth < third
    assert not any(Traffic(0, key).is_chosen for key in KEYS)
    assert all(Traffic(1, key).is_chosen for key in KEYS)
    assert Traffic(1.0, "a lone surrogate \ud800").is_chosen


@pytest.mark.parametrize(("key", "share"), [("user-1", 0.34249), ("blood pressure", 0.95199), ("", 0.92867)])
def test_a_session_key_is_in_the_same_share_in_every_process_and_version(key: str, share: float) -> None:
    assert not Traffic(share - 0.0001, key or None).is_chosen
    assert Traffic(share + 0.0001, key or None).is_chosen


NAMES = ("shop-*", "shop-de*", "shop-de-old", "news")


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ("shop-de-old", {"shop-de-old"}),  # its own name
        ("shop-de-1", {"shop-de*"}),  # else the longest pattern
        ("shop-fr", {"shop-*"}),
        ("papers", {None}),
        ("news,papers", {"news", None}),
        (["news", "shop-fr"], {"news", "shop-*"}),
        (["shop-fr,shop-it"], {"shop-*"}),
        ("shop-*", {"shop-*", "shop-de*", "shop-de-old"}),
        ("shop-fr*", {"shop-*"}),
        ("shop-d*", {"shop-*", "shop-de*", "shop-de-old"}),
        ("shop-de*", {"shop-de*", "shop-de-old"}),
        ("*-fr", {"shop-*", "shop-de*", None}),  # shop-de-fr
        ("*", {*NAMES, None}),
        ("_all", {*NAMES, None}),
        (None, {*NAMES, None}),
        ("", {*NAMES, None}),
        ("shop-*,-shop-de*", {"shop-*"}),
        (["n*", "-news"], {None}),
        ("new*s", {"news", None}),
        ("newspaper*", {None}),
    ],
)
def test_the_names_in_the_settings_file_that_apply_to_an_index(index, found):
    assert match_names(index, NAMES) == found
    assert match_names(index, ()) == {None}
