"""Settings: their sources, refused values, and secrets."""

import base64
import re
from pathlib import Path

import pytest

from osrerank import Rerank, connect
from osrerank.errors import ConfigError
from osrerank.service import RerankService
from osrerank.settings import Settings


def test_an_argument_overrides_the_environment_and_an_empty_variable_is_unset(monkeypatch):
    assert Settings.load().threads == 0
    monkeypatch.setenv("OSRERANK_THREADS", "3")
    assert Settings.load().threads == 3
    assert Settings.load(threads=2).threads == 2
    monkeypatch.setenv("OSRERANK_URL", "")
    assert Settings.load().url.get_secret_value().startswith("embedded:")


def test_the_variables_that_kubernetes_sets_for_a_service_are_no_settings(monkeypatch):
    monkeypatch.setenv("OSRERANK_SERVER_SERVICE_HOST", "10.0.0.7")
    for name in ("SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_8088_TCP", "PORT_8088_TCP_ADDR"):
        monkeypatch.setenv(f"OSRERANK_SERVER_{name}", "tcp://10.0.0.7:8088")
    assert Settings.load().server_token is None
    monkeypatch.setenv("OSRERANK_SERVER_TOKENS", "x")
    with pytest.raises(ConfigError, match="OSRERANK_SERVER_TOKENS is not a setting"):
        Settings.load()


def test_unknown_variables_and_bad_values_are_named_with_their_source(monkeypatch):
    monkeypatch.setenv("OSRERANK_REDIS", "x")
    with pytest.raises(ConfigError, match=r"OSRERANK_REDIS is not a setting.*OSRERANK_REDIS_URL") as caught:
        Settings.load()
    assert caught.value.source == "environment"
    monkeypatch.delenv("OSRERANK_REDIS")
    with pytest.raises(ConfigError, match=r"cache_mb \(argument\) is invalid"):
        Settings.load(cache_mb=-1)
    monkeypatch.setenv("OSRERANK_CACHE_MB", "many")
    with pytest.raises(ConfigError, match=r"cache_mb \(OSRERANK_CACHE_MB\)"):
        Settings.load()


@pytest.mark.parametrize(
    "url", ["", "localhost:9200", "http://", "embedded:", "ftp://host", "http://a:1,b:2", "http://user:secret@"]
)
def test_a_malformed_url_is_refused(url):
    with pytest.raises(
        ConfigError, match=r"^the setting url \(argument\) is invalid: it must be http.*embedded:FOLDER"
    ):
        Settings.load(url=url)


@pytest.mark.parametrize("password", ["hunter/2", "hunter#2", "hunter?2", "hunter[2"])
@pytest.mark.parametrize(
    ("setting", "address"), [("url", "https://user:{}@host:9200"), ("redis_url", "rediss://:{}@host:6380/0")]
)
def test_a_password_that_is_not_percent_encoded_is_refused_and_not_shown(setting, address, password):
    with pytest.raises(ConfigError, match=f"{setting}.*percent-encode the password$") as error:
        Settings.load(**{setting: address.format(password)})
    assert "hunter" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis://host:638x", "its host and port cannot be read"),
        ("redis://host:99999", "its host and port cannot be read"),
        ("redis://host?db=first", "Invalid value for 'db'"),
        ("redis://host?socket_timeout=long", "Invalid value for 'socket_timeout'"),
    ],
)
def test_a_redis_url_that_cannot_be_read_is_refused_before_the_first_search(url, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        Settings.load(redis_url=url)


@pytest.mark.parametrize("url", ["redis:///0", "redis://[::1]:6379/0", "unix:///run/redis@1.sock?password=a@b"])
def test_a_redis_url_that_can_be_read_is_accepted(url):
    assert Settings.load(redis_url=url).broker() == url


def test_secrets_are_not_in_the_settings_representation():
    settings = Settings.load(url="https://user:hunter2@host:9200", redis_url="redis://:hunter2@host")
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize("token", ["", " ", "two words", "caf\u00e9"])
def test_an_empty_or_unusable_token_is_refused(token, monkeypatch, tmp_path):
    (tmp_path / "osrerank_server_token").write_text(f"{token}\n")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="printable"):
        Settings.load()


def test_a_backend_that_is_not_registered_is_refused_before_the_first_search(monkeypatch, tmp_path):
    reason = "backend is 'worker'; it must be one of auto, onnx, torch, workers, http; did you mean 'workers'?"
    with pytest.raises(ConfigError, match=re.escape(reason)):
        connect(f"embedded:{tmp_path}", backend="worker")
    monkeypatch.setenv("OSRERANK_BACKEND", "worker")
    with pytest.raises(ConfigError, match=re.escape(reason)):
        connect(f"embedded:{tmp_path}")


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


def test_secrets_that_cannot_be_read_are_errors_and_are_not_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match=r"OSRERANK_SECRETS_DIR is .*absent, which is not a folder"):
        Settings.load()
    (tmp_path / "osrerank_redis_url").symlink_to(tmp_path / "osrerank_redis_url")  # unreadable for root too
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="this user cannot read the folder"):
        Settings.load()
    (tmp_path / "osrerank_redis_url").unlink()
    (tmp_path / "osrerank_redis_url").write_text("hunter2")
    monkeypatch.setenv("OSRERANK_SECRETS_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="OSRERANK_REDIS_URL") as caught:
        Settings.load()
    assert "hunter2" not in str(caught.value)


def test_the_setting_dtype_reaches_the_scorer(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("OSRERANK_DTYPE", "bf16")
    directory = Path(__file__).parents[1] / "data" / "tiny-bert-one-label"
    identities = [
        RerankService(Settings.load(model=str(directory), **options)).identity(Rerank())["scorer"]
        for options in ({}, {"dtype": "fp32"})
    ]
    assert [identity.split("/")[1] for identity in identities] == ["bf16", "fp32"]
    with pytest.raises(ConfigError, match="dtype is 'int4'; it must be one of auto, fp32, bf16, fp16"):
        RerankService(Settings.load(dtype="int4"))


def test_the_broker_url_defaults_to_the_cache_url():
    cache, broker = "redis://cache:6379/0", "rediss://:secret@broker:6380/0"
    assert Settings.load(redis_url=cache).broker() == cache
    assert Settings.load(redis_url=cache, broker_url=broker).broker() == broker
    assert "secret" not in repr(Settings.load(broker_url=broker))
    with pytest.raises(ConfigError, match="OSRERANK_REDIS_URL"):
        Settings.load().broker()


def test_a_setting_given_to_connect_is_refused_with_its_variable(tmp_path):
    with pytest.raises(ConfigError, match="set OSRERANK_BROKER_URL"):
        connect(f"embedded:{tmp_path}", broker_url="redis://localhost")


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("eu-west-1.aws.found.io$abc$def", "https://abc.eu-west-1.aws.found.io:443"),
        ("eu-west-1.aws.found.io:9243$abc$def", "https://abc.eu-west-1.aws.found.io:9243"),
        ("eu-west-1.aws.found.io$abc", "https://abc.eu-west-1.aws.found.io:443"),
    ],
)
def test_a_cloud_id_is_the_address_of_its_deployment(host, address):
    cloud_id = f"my deployment:{base64.b64encode(host.encode()).decode()}"
    assert Settings.load(url=cloud_id).url.get_secret_value() == address


def test_an_api_key_is_not_in_the_settings_representation():
    assert "c2VjcmV0" not in repr(Settings.load(api_key="c2VjcmV0"))
