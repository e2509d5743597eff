import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from osrerank import connect
from osrerank.cli import cli
from osrerank.doctor import examine
from osrerank.settings import Settings
from osrerank.stages.language_guard import IS_INSTALLED

TINY = str(Path(__file__).parents[1] / "data" / "tiny-bert-one-label")
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'engine'}"


def findings(url: str, *, index: str = "", **options: str) -> dict[str, object]:
    settings = Settings.load(**{"url": url, "model": TINY, "backend": "onnx", **options})
    return {finding.part: finding for finding in examine(settings, index=index)}


def test_a_sound_deployment_is_told_part_by_part(url: str) -> None:
    found = findings(url)
    absent = {"index", "redis", "workers", *(() if IS_INSTALLED else ("languages",))}
    sound = {"software", "processor", "model", "scored pair", "languages", "engine"} - absent
    statuses = {part: finding.status for part, finding in found.items()}
    assert statuses == dict.fromkeys(sound, "ok") | dict.fromkeys(absent, "absent")
    assert found["model"].facts["precision"] == "fp32"
    assert "the settings say onnx" in found["model"].found
    assert found["scored pair"].facts["took_ms"] > 0
    folder = url.removeprefix("embedded:")
    assert found["engine"].found.startswith(f"the embedded engine in {folder} answers as opensearch 3.")
    assert "the model has graphs (fp32)" in findings(url, backend="auto")["model"].found


def test_the_model_of_vectors_is_checked_where_the_pipeline_needs_it(url: str, tmp_path: Path) -> None:
    file = tmp_path / "osrerank.toml"
    file.write_text('[rerank]\npipeline = "vectors-mono"\n')
    found = findings(url, settings_file=str(file))["vector model"]
    assert (found.status, found.facts) == ("ok", {"model": "osrerank/e5-small"})
    wrong = findings(url, settings_file=str(file), vector_model=TINY)["vector model"]
    assert (wrong.status, "model is needed here" in wrong.found) == ("failed", True)
    assert "OSRERANK_VECTOR_MODEL" in wrong.fix


def test_a_model_or_an_index_that_is_not_there_is_named_and_hides_nothing(url: str, tmp_path: Path) -> None:
    found = findings(url, model=str(tmp_path / "none"))
    assert found["model"].status == "failed"
    assert "there is no directory" in found["model"].found
    assert found["engine"].status == "ok"
    found = findings(url, index="missing")["index"]
    assert found.status == "failed"
    assert "missing" in found.found


@pytest.mark.parametrize(
    ("fields", "named", "status", "words"),
    [
        (("title", "text"), None, "ok", "searched: title, text; read: title, text"),
        (("body",), None, "ok", "searched: body; read: body"),
        (("body",), '[rerank]\nfields = ["summary"]\n', "failed", "its text fields: body"),
    ],
)
def test_text_fields_are_compared_with_what_the_model_reads(url, fields, named, status, words, tmp_path, monkeypatch):
    if named:
        (tmp_path / "settings.toml").write_text(named)
        monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(tmp_path / "settings.toml"))
    with connect(url) as client:
        properties = {name: {"type": "text"} for name in fields} | {"year": {"type": "integer"}}
        client.indices.create(index="notes", body={"mappings": {"properties": properties}})
    found = findings(url, index="notes")["index"]
    assert (found.status, words in found.found) == (status, True)


def test_a_redis_that_does_not_answer_has_a_fix_and_keeps_its_password(url: str) -> None:
    found = findings(url, redis_url="redis://:secret@127.0.0.1:9/0")["redis"]
    assert found.status == "failed"
    assert "OSRERANK_REDIS_URL" in found.fix
    assert "secret" not in found.found + found.fix


@pytest.mark.integration
def test_a_redis_with_queues_must_not_evict_and_a_cache_may(url: str, redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        before = {name: client.config_get(name)[name] for name in ("maxmemory", "maxmemory-policy")}
        try:
            client.config_set("maxmemory", 100_000_000)
            client.config_set("maxmemory-policy", "noeviction")
            advised = findings(url, redis_url=redis_url, backend="workers")["redis"]
            client.config_set("maxmemory-policy", "allkeys-lru")
            evicting = findings(url, redis_url=redis_url, backend="workers")["redis"]
            cache_alone = findings(url, redis_url=redis_url)["redis"]
            broker_alone = findings(url, broker_url=redis_url, backend="workers")["broker"]
        finally:
            for name, value in before.items():
                client.config_set(name, value)
    assert (advised.status, evicting.status) == ("ok", "failed")
    assert (cache_alone.status, broker_alone.status) == ("ok", "failed")
    assert "OSRERANK_CACHE_MB" in advised.found
    assert "noeviction" in evicting.fix
    assert cache_alone.facts["maxmemory_policy"] == "allkeys-lru"


def test_the_exit_code_tells_a_program(url: str) -> None:
    sound = CliRunner().invoke(cli, ["--json", "--url", url, "--model", TINY, "--backend", "onnx", "doctor"])
    assert (sound.exit_code, json.loads(sound.stdout)["ok"]) == (0, True)
    broken = CliRunner().invoke(cli, ["--url", NOWHERE, "--model", TINY, "--backend", "onnx", "doctor"])
    assert broken.exit_code == 1
    assert "✗ engine: it does not answer" in broken.output
    assert "fix: start the server" in broken.output


def test_the_precision_of_the_command_line_is_looked_at(url: str) -> None:
    outcome = CliRunner().invoke(cli, ["--url", url, "--model", TINY, "--backend", "onnx", "--dtype", "bf16", "doctor"])
    assert outcome.exit_code == 1
    assert "backend onnx does not compute in bf16" in outcome.output
