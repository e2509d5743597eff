"""`osrerank doctor`: what it checks, and the fix that it names for each fault."""

import contextlib
import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from opensearchpy import TransportError

from osrerank import connect
from osrerank.cli import cli
from osrerank.doctor import choose_engine_fix, examine
from osrerank.settings import Settings
from tests.articles import fill

TINY = str(Path(__file__).parents[1] / "data" / "tiny-bert-one-label")
BI_ENCODER = str(Path(TINY).with_name("tiny-bert-bi-encoder"))
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"embedded:{tmp_path / 'engine'}"


def findings(url: str, *, index: str = "", **options: str) -> dict[str, object]:
    settings = Settings.load(**{"url": url, "model": TINY, "backend": "onnx", **options})
    return {finding.part: finding for finding in examine(settings, index=index)}


def test_the_doctor_reports_each_part_of_a_sound_deployment(url: str) -> None:
    by_part = findings(url)
    absent = {"index", "redis", "workers"}
    sound = {"software", "processor", "model", "scored pair", "engine"}
    statuses = {part: finding.status for part, finding in by_part.items()}
    assert statuses == dict.fromkeys(sound, "ok") | dict.fromkeys(absent, "absent")
    assert by_part["model"].facts["precision"] == "fp32"
    assert "the settings choose onnx" in by_part["model"].found
    assert by_part["scored pair"].facts["took_ms"] > 0
    folder = url.removeprefix("embedded:")
    assert by_part["engine"].found.startswith(f"the embedded engine in {folder} responds as opensearch 3.")
    assert "the model contains ONNX graphs (fp32)" in findings(url, backend="auto")["model"].found


def test_the_doctor_checks_the_vector_model_if_the_pipeline_needs_it(url: str, tmp_path: Path) -> None:
    file = tmp_path / "osrerank.toml"
    file.write_text('[rerank]\npipeline = "vectors-mono"\n')
    finding = findings(url, settings_file=str(file))["vector model"]
    assert (finding.status, finding.facts) == ("ok", {"model": "osrerank/e5-small"})
    wrong = findings(url, settings_file=str(file), vector_model=TINY)["vector model"]
    assert (wrong.status, "model; choose a" in wrong.found) == ("failed", True)
    assert "OSRERANK_VECTOR_MODEL" in wrong.fix


def test_the_doctor_names_a_missing_model_or_index_and_continues(url: str, tmp_path: Path) -> None:
    findings_by_part = findings(url, model=str(tmp_path / "none"))
    assert findings_by_part["model"].status == "failed"
    assert "there is no directory" in findings_by_part["model"].found
    assert findings_by_part["engine"].status == "ok"
    findings_by_part = findings(url, index="missing")["index"]
    assert findings_by_part.status == "failed"
    assert "missing" in findings_by_part.found


def test_the_doctor_names_a_missing_settings_file_and_no_server_to_start(url: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(tmp_path / "none.toml"))
    finding = findings(url)["engine"]
    assert (finding.status, finding.fix) == ("failed", "")
    assert "none.toml cannot be read" in finding.found


@pytest.mark.parametrize(
    ("fields", "named", "status", "words"),
    [
        (("title", "text"), None, "ok", "searched: title, text; read: title, text"),
        (("body",), None, "ok", "searched: body; read: body"),
        (("body",), '[rerank]\nfields = ["summary"]\n', "failed", "its text fields: body"),
    ],
)
def test_the_doctor_compares_text_fields_with_the_fields_read(url, fields, named, status, words, tmp_path, monkeypatch):
    if named:
        (tmp_path / "settings.toml").write_text(named)
        monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(tmp_path / "settings.toml"))
    with connect(url) as client:
        properties = {name: {"type": "text"} for name in fields} | {"year": {"type": "integer"}}
        client.indices.create(index="notes", body={"mappings": {"properties": properties}})
    finding = findings(url, index="notes")["index"]
    assert (finding.status, words in finding.found) == (status, True)


def test_the_doctor_notices_documents_without_text_in_the_fields_that_are_read(url: str) -> None:
    with connect(url) as client:
        client.indices.create(index="notes", body={"mappings": {"properties": {"body": {"type": "text"}}}})
        assert "texts" not in findings(url, index="notes")
        client.index(index="notes", body={"year": 1999}, refresh=True)
    finding = findings(url, index="notes")["texts"]
    assert (finding.status, finding.found) == ("failed", "notes: the sampled documents have no text in body")
    assert "_source" in finding.fix


def test_the_doctor_names_a_fix_for_a_silent_redis_and_hides_its_password(url: str) -> None:
    finding = findings(url, redis_url="redis://:secret@127.0.0.1:9/0")["redis"]
    assert finding.status == "failed"
    assert "OSRERANK_REDIS_URL" in finding.fix
    assert "secret" not in finding.found + finding.fix


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


def test_the_doctors_exit_code_is_1_if_a_check_fails(url: str) -> None:
    sound = CliRunner().invoke(cli, ["--json", "--url", url, "--model", TINY, "--backend", "onnx", "doctor"])
    assert (sound.exit_code, json.loads(sound.stdout)["ok"]) == (0, True)
    broken = CliRunner().invoke(cli, ["--url", NOWHERE, "--model", TINY, "--backend", "onnx", "doctor"])
    assert broken.exit_code == 1
    assert "✗ engine: it does not respond" in broken.output
    assert "fix: start the server" in broken.output


def test_the_doctor_checks_the_precision_of_the_command_line(url: str) -> None:
    outcome = CliRunner().invoke(cli, ["--url", url, "--model", TINY, "--backend", "onnx", "--dtype", "bf16", "doctor"])
    assert outcome.exit_code == 1
    assert "backend onnx does not compute in bf16" in outcome.output


INFO = json.dumps({"version": {"number": "3.6.0", "distribution": "opensearch"}}).encode()


@contextlib.contextmanager
def served(handler: Any) -> Iterator[int]:
    """Yield the port of a server on loopback."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def answering(status: int, *, knows_itself: bool) -> Any:
    """A search engine that answers everything with a status, except perhaps the question of what it is."""

    class Engine(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            says_itself = knows_itself and self.path == "/"
            content = INFO if says_itself else b"{}"
            self.send_response(200 if says_itself else status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_HEAD = do_GET  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            pass

    return Engine


STATUSES = {
    400: "",
    401: "the password",
    403: "the missing permission",
    404: "",
    405: "correct the address",
    407: "of the proxy",
    429: "wait",
    500: "log",
    502: "log",
    503: "wait",
    504: "log",
}


@pytest.mark.parametrize("knows_itself", [False, True])
@pytest.mark.parametrize("status", STATUSES)
def test_the_doctors_fix_fits_the_status_of_the_search_engine(status: int, *, knows_itself: bool) -> None:
    with served(answering(status, knows_itself=knows_itself)) as port:
        by_part = findings(f"http://admin:secret@127.0.0.1:{port}", index="notes", model=BI_ENCODER)
    failed = [by_part["index"], by_part["vectors"]] if knows_itself else [by_part["engine"]]
    for finding in failed:
        assert (finding.status, str(status) in finding.found) == ("failed", True)
        assert STATUSES[status] in finding.fix
        assert "start the server" not in finding.fix
        assert ("osrerank index" in finding.fix) == (status == 404 and knows_itself)
        assert "secret" not in finding.found + finding.fix


ENGINE_ERRORS = {
    "flood": (429, "cluster_block_exception", "free disk space where the engine stores its data"),
    "recovering": (503, "cluster_block_exception", "wait until the server has started"),
    "closed": (400, "index_closed_exception", "open the index notes, or leave it out"),
}


@pytest.mark.parametrize("name", ENGINE_ERRORS)
def test_the_fix_fits_what_the_search_engine_says(name: str) -> None:
    status, kind, fix = ENGINE_ERRORS[name]
    error = TransportError(status, kind, {"error": {"type": kind, "index": "notes"}})
    assert choose_engine_fix(error).startswith(fix)


REPLIES = {
    "NOPERM this user has no permissions to run the 'set' command": "lacks permissions",
    "NOAUTH Authentication required.": "its password",
    "WRONGPASS invalid username-password pair or user is disabled.": "its password",
    "READONLY You can't write against a read only replica.": "the master",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.": "the master",
    "OOM command not allowed when used memory > 'maxmemory'.": "maxmemory",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.": "its disk",
    "LOADING Redis is loading the dataset in memory": "wait",
    "NOREPLICAS Not enough good replicas to write.": "its log",
    "BUSY Redis is busy running a script.": "its log",
}


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("backend", ["onnx", "workers"])
def test_the_doctors_fix_fits_the_error_of_redis(reply: str, backend: str, url: str) -> None:
    class Redis(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while line := self.rfile.readline():
                for _ in range(int(line[1:])):
                    self.rfile.read(int(self.rfile.readline()[1:]) + 2)
                self.wfile.write(f"-{reply}\r\n".encode())

    with served(Redis) as port:
        by_part = findings(url, redis_url=f"redis://127.0.0.1:{port}/0", backend=backend)
    failed = [by_part["redis"], *([by_part["workers"]] if backend == "workers" else [])]
    for finding in failed:
        assert (finding.status, reply.partition(" ")[0] in finding.found) == ("failed", True)
        assert REPLIES[reply] in finding.fix
        assert "start" not in finding.fix


@pytest.mark.integration
@pytest.mark.parametrize(
    "rights", ["~osrerank:* &osrerank:* +@all -@dangerous", "~queue:* &* +@all -@dangerous", "+@all"]
)
def test_the_doctor_names_missing_rights_of_a_redis_user(rights: str, url: str, redis_url: str) -> None:
    import redis

    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "narrow", "reset", "on", ">pw", "resetchannels", *rights.split())
        try:
            address = redis_url.replace("redis://", "redis://narrow:pw@")
            finding = findings(url, redis_url=address, backend="workers")["redis"]
        finally:
            client.execute_command("ACL", "DELUSER", "narrow")
    assert (finding.status, "NOPERM" in finding.found, "permissions" in finding.fix) == ("failed", True, True)


@pytest.mark.integration
def test_a_redis_user_with_the_rights_of_the_page_on_workers_is_sound(url: str, redis_url: str) -> None:
    import redis

    page = (Path(__file__).parents[2] / "docs" / "workers.md").read_text()
    rights = page.partition("with the rights `")[2].partition("`")[0].split()
    with redis.Redis.from_url(redis_url) as client:
        client.execute_command("ACL", "SETUSER", "documented", "reset", "on", ">pw", *rights)
        try:
            address = redis_url.replace("redis://", "redis://documented:pw@")
            finding = findings(url, redis_url=address, backend="workers")["redis"]
        finally:
            client.execute_command("ACL", "DELUSER", "documented")
    assert (finding.status, "noeviction" in finding.found) == ("ok", True)


def test_the_doctors_fix_for_a_missing_model_names_its_setting(url: str, tmp_path: Path) -> None:
    file = tmp_path / "osrerank.toml"
    file.write_text('[index.notes]\nmodel = "./missing"\n')
    with connect(url) as client:
        client.index(index="notes", id="1", body={"text": "salt"}, refresh=True)
    command = ["--url", url, "doctor", "--index", "notes"]
    outcome = CliRunner().invoke(cli, command, env={"OSRERANK_SETTINGS_FILE": str(file)})
    fixes = [line for line in outcome.output.splitlines() if line.startswith("    fix:")]
    assert len(fixes) == 2
    assert all(f"correct the model of notes in {file}" in fix for fix in fixes)
    elsewhere = findings(url, model="./missing", index="notes")
    assert all("OSRERANK_MODEL" in elsewhere[part].fix for part in ("model", "vectors"))


SENTENCE = "Diese leise Waschmaschine verbraucht wenig Wasser und wäscht auch Wolle, Seide und Kleider Nummer"


@pytest.mark.long
def test_the_doctor_recommends_a_model_for_documents_in_an_unread_language(url: str) -> None:
    with connect(url) as client:
        fill(client, "waren", [{"title": f"Ware {number}", "body": f"{SENTENCE} {number}"} for number in range(20)])
    finding = findings(url, index="waren", model="osrerank/e5-small")["languages"]
    assert (finding.status, finding.found, finding.facts) == ("failed", "waren: the documents are in de", {"de": 20})
    assert "osrerank/e5-small does not read de: osrerank/e5-multilingual reads it: " in finding.fix
    assert 'has an analyzer without a language: "analyzer": "german" in the mapping' in finding.fix
