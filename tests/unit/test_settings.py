"""Settings: precedence, unknown names, secrets, the settings file."""

from pathlib import Path

import pytest

from osrerank import Rerank, connect
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.reranker import Reranker
from osrerank.settings import Settings
from osrerank.testing import CannedTransport, FunctionScorer


def test_argument_wins_over_environment_over_default(monkeypatch):
    assert Settings.load().threads == 0
    monkeypatch.setenv("OSRERANK_THREADS", "3")
    assert Settings.load().threads == 3
    assert Settings.load(threads=2).threads == 2


def test_unknown_variable_is_an_error_that_names_it(monkeypatch):
    monkeypatch.setenv("OSRERANK_REDIS", "x")
    with pytest.raises(ConfigError, match=r"OSRERANK_REDIS is no setting.*OSRERANK_REDIS_URL") as caught:
        Settings.load()
    assert caught.value.source == "environment"


def test_empty_variable_is_none(monkeypatch):
    monkeypatch.setenv("OSRERANK_URL", "")
    assert Settings.load().url.get_secret_value().startswith("embedded:")


@pytest.mark.parametrize("url", ["", "localhost:9200", "http://", "embedded:", "ftp://host", "http://a:1,b:2"])
def test_what_is_no_url(url):
    with pytest.raises(ConfigError, match=r"url \(argument\).*embedded:FOLDER"):
        Settings.load(url=url)


def test_secrets_are_not_shown():
    settings = Settings.load(url="https://user:hunter2@host:9200", redis_url="redis://:hunter2@host")
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("token", ["", " ", "two words", "caf\u00e9"])
def test_a_token_that_lets_nobody_or_everybody_in_is_refused(token, monkeypatch, tmp_path):
    (tmp_path / "osrerank_server_token").write_text(f"{token}\n")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="printable"):
        Settings.load()


def test_bad_value_names_setting_and_source(monkeypatch):
    with pytest.raises(ConfigError, match=r"backend \(argument\)"):
        Settings.load(backend="abacus")
    monkeypatch.setenv("OSRERANK_BACKEND", "abacus")
    with pytest.raises(ConfigError, match=r"backend \(OSRERANK_BACKEND\)"):
        Settings.load()


def test_secret_files_come_after_the_environment(monkeypatch, tmp_path):
    (tmp_path / "osrerank_redis_url").write_text("redis://:hunter2@file:6379/0\n")
    (tmp_path / "somebody_elses").write_text("x")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    settings = Settings.load()
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == "redis://:hunter2@file:6379/0"
    monkeypatch.setenv("OSRERANK_REDIS_URL", "redis://environment")
    settings = Settings.load()
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == "redis://environment"


def test_absent_folder_of_secrets_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"OSRERANK_SECRETS_DIR: .*absent is no folder"):
        Settings.load()


def test_unreadable_secret_is_an_error(monkeypatch, tmp_path):
    (tmp_path / "osrerank_redis_url").symlink_to(tmp_path / "osrerank_redis_url")  # unreadable for root too
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="must be readable for this user"):
        Settings.load()


def test_bad_secret_names_its_setting_and_is_not_shown(monkeypatch, tmp_path):
    (tmp_path / "osrerank_redis_url").write_text("hunter2")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="OSRERANK_REDIS_URL") as caught:
        Settings.load()
    assert "hunter2" not in str(caught.value)


def test_dtype_reaches_the_scorer(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("OSRERANK_DTYPE", "bf16")
    directory = Path(__file__).parents[1] / "data" / "tiny-bert-one-label"
    identities = [
        Reranker(Settings.load(model=str(directory), **given)).identity(Rerank())["scorer"]
        for given in ({}, {"dtype": "fp32"})
    ]
    assert [identity.split("/")[1] for identity in identities] == ["bf16", "fp32"]
    with pytest.raises(ConfigError, match=r"dtype \(argument\)"):
        Settings.load(dtype="int4")


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
def settings_file(tmp_path):
    file = tmp_path / "osrerank.toml"
    file.write_text(FILE, "utf-8")
    return file


def test_defaults_of_each_index(settings_file):
    defaults = Defaults.load(Settings.load(settings_file=settings_file))
    general = Rerank(depth=50, fields=("headline", "body"))
    passages = {"aggregation": "kmaxavgp", "title_fields": ("headline",)}
    articles = Rerank(depth=20, fields=("headline", "body"), query_fields=("headline^2", "body"), passages=passages)
    assert defaults.of("other") == defaults.of(None) == defaults.of("other,articles-1") == general
    assert defaults.of("articles-1") == defaults.of(["articles-1", "articles-2"]) == articles


def test_client_uses_them_and_arguments_win(settings_file, monkeypatch):
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(settings_file))
    answer = {"took": 1, "hits": {"hits": []}}
    client = connect("http://localhost:9", transport_class=CannedTransport, answer=answer, scorer=FunctionScorer())
    for index, rerank, size in (("x", True, 50), ("articles", True, 20), ("articles", {"depth": 30}, 30)):
        client.search("low", index=index, rerank=rerank)
        assert client.transport.requests[-1]["body"]["size"] == size


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
        ("[index.a]\ndepth = 5", "'index.a'"),
    ],
)
def test_bad_settings_file_is_named(tmp_path, content, named):
    file = tmp_path / "bad.toml"
    file.write_text(content, "utf-8")
    with pytest.raises(ConfigError, match=named) as caught:
        Defaults.load(Settings.load(settings_file=file))
    assert "bad.toml" in str(caught.value)


def test_missing_settings_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        Defaults.load(Settings.load(settings_file=tmp_path / "none.toml"))


def test_workers_meet_where_the_broker_is_or_else_the_cache():
    cache, broker = "redis://cache:6379/0", "rediss://:secret@broker:6380/0"
    assert Settings.load(redis_url=cache).broker() == cache
    assert Settings.load(redis_url=cache, broker_url=broker).broker() == broker
    assert "secret" not in repr(Settings.load(broker_url=broker))
    with pytest.raises(ConfigError, match="OSRERANK_REDIS_URL"):
        Settings.load().broker()


def test_a_wrong_address_is_told_in_our_words():
    with pytest.raises(ConfigError, match=r"^url \(argument\): an index is http"):
        Settings.load(url="localhost:9200")


def test_a_setting_of_the_environment_is_not_passed_over_as_an_argument(tmp_path):
    with pytest.raises(ConfigError, match="set OSRERANK_BROKER_URL"):
        connect(f"embedded:{tmp_path}", broker_url="redis://localhost")
