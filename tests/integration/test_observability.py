"""A client, ``osrerank serve`` and ``osrerank worker`` in three processes: one trace, and the metrics asked for.

The queries of the dashboard and of the alert rules are compared with what the processes show.
"""

import contextlib
import functools
import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import pytest
from prometheus_client import REGISTRY, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from osrerank import connect
from osrerank.testing import CannedTransport
from tests import servers
from tests.rankings import response_of
from tests.rerank_server import server_file
from tests.servers import ROOT, free_port
from tests.serving import serving
from tests.tracing import Collector, one, recording, told
from tests.workers import PATHS, TINY, worker_group

pytestmark = [pytest.mark.integration, pytest.mark.long]
WORKER_METRICS = free_port()
OBSERVABILITY = ROOT / "docker" / "observability"
KEY = "a key of the tests of traces"
TEXTS = ["salt and water", "a secret", "water"]


@pytest.fixture(scope="module")
def collector():
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def variables(collector):
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100", "OSRERANK_THREADS": "1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory, variables):
    """A Redis with a worker whose messages are signed."""
    folder = tmp_path_factory.mktemp("workers")
    options = {"environment": variables, "key": KEY, "options": ("--metrics-port", str(WORKER_METRICS))}
    with servers.redis(folder) as url, worker_group(url, folder, **options):
        yield url


@pytest.fixture(scope="module")
def server(tmp_path_factory, variables, broker):
    """The address of a rerank server whose texts go to that worker."""
    environment = {**variables, "PYTHONPATH": PATHS, "OSRERANK_BROKER_URL": broker, "OSRERANK_SIGNING_KEY": KEY}
    log = tmp_path_factory.mktemp("serve") / "log"
    with serving(log, "--model", TINY, "--backend", "workers", environment=environment) as (_, port):
        yield f"http://127.0.0.1:{port}"


def test_a_search_through_a_server_and_a_worker_is_one_trace(server, collector, tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_SETTINGS_FILE", str(server_file(tmp_path, server, dialect="osrerank")))
    options = {"transport_class": CannedTransport, "answer": response_of(TEXTS), "backend": "http", "model": TINY}
    with recording() as exporter, contextlib.closing(connect("http://localhost:9", **options)) as client:
        answer = client.search("salt", index="notes", rerank={"fields": ["text"], "blend": "replace"})
    assert answer["rerank"]["applied"] is True
    spans = told(exporter)
    sent = [span for span in spans if span.name == "POST"]
    stage = one(spans, "stage mono")
    assert {span.parent for span in sent} == {stage.span}
    assert sent[0].attributes["http.response.status_code"] == 200
    foreign = collector.wait_for("POST /", "osrerank.score", "process ", trace=stage.trace)
    request, score, chunk = one(foreign, "POST /"), one(foreign, "osrerank.score"), one(foreign, "process ")
    assert (request.parent, score.parent, chunk.parent) == (sent[0].span, request.span, score.span)
    assert (request.service, chunk.service) == ("osrerank-server", "osrerank-worker")
    assert (request.kind, chunk.kind) == ("SERVER", "CONSUMER")
    assert request.attributes["http.route"] in request.name
    assert chunk.attributes["messaging.operation.type"] == "process"
    assert chunk.attributes["osrerank.chunk.outcome"] == "scored"
    assert chunk.attributes["osrerank.chunk.pairs"] == 3
    assert not any(text in str([*spans, *foreign]) for text in ("salt", "secret"))


@pytest.mark.parametrize(("body", "status"), [(b"{", 400), (b'{"query": "salt", "documents": 3}', 422)])
def test_the_trace_of_a_refused_request_has_no_body(server, collector, body, status):
    header = f"00-{status:032x}-00000000000000aa-01"
    headers = {"Content-Type": "application/json", "traceparent": header}
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{server}/v1/rerank", body, headers), timeout=30)
    assert refused.value.code == status
    assert json.loads(refused.value.read())["message"]
    (span,) = collector.wait_for("", trace=f"{status:032x}")
    assert span.name == "POST /v1/rerank"
    assert span.attributes["http.response.status_code"] == status
    assert not span.is_error
    assert span.events == {}
    assert "salt" not in str(span)


def test_a_server_without_the_sdk_says_what_to_install(monkeypatch, caplog):
    from osrerank.tracing.export import export_traces

    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "unknown")
    assert export_traces("osrerank-server") is False
    assert "[no-traces]" in caplog.text
    assert "pip install opentelemetry-sdk" in caplog.text
    caplog.clear()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert export_traces("osrerank-server") is False
    assert caplog.text == ""


def queries():
    """Return the queries of the dashboard and the rules, by the panel's title or the alert's name."""
    panels = json.loads((OBSERVABILITY / "dashboard.json").read_text("utf-8"))["panels"]
    expressions = {
        f"{panel['title']} {target['refId']}": target["expr"] for panel in panels for target in panel["targets"]
    }
    rules = (OBSERVABILITY / "alerts.yaml").read_text("utf-8")
    return expressions | dict(re.findall(r"- alert: (\w+)\n +expr: >-\n +(.+)\n", rules))


def scraped(address):
    with urllib.request.urlopen(f"{address}/metrics", timeout=30) as answer:
        return answer.read().decode()


@functools.cache
def searched(server, broker):
    """Return the metrics of a client that has searched through the workers, of the server and of the worker."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSRERANK_BROKER_URL", broker)
        patch.setenv("OSRERANK_SIGNING_KEY", KEY)
        answer = response_of(TEXTS)
        options = {"transport_class": CannedTransport, "answer": answer, "redis_url": broker, "model": TINY}
        with contextlib.closing(connect("http://localhost:9", backend="workers", **options)) as client:
            assert client.search("water", index="notes", rerank={"fields": ["text"]})["rerank"]["applied"] is True
    return generate_latest().decode(), scraped(server), scraped(f"http://127.0.0.1:{WORKER_METRICS}")


def labels_of(name, samples):
    """Return the labels that a metric's samples have, or may have."""
    label_names = {label for sample in samples if sample.name == name for label in sample.labels}
    definition = REGISTRY._names_to_collectors.get(name)
    return label_names | set(getattr(definition, "_labelnames", ())) | {"instance", "job"}


@pytest.mark.parametrize("place", queries())
def test_dashboards_and_alerts_query_existing_metrics_and_labels(server, broker, place):
    texts = searched(server, broker)
    families = [family for text in texts for family in text_string_to_metric_families(text)]
    samples = [sample for family in families for sample in family.samples]
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    metric_names = {f"{family.name}{suffix}" for family in families for suffix in suffixes.get(family.type, ())}
    query = queries()[place]
    matches = re.findall(r"\b(osrerank_\w+)(?:\{([^}]*)\})?", query)
    assert matches
    assert {name for name, _ in matches} <= metric_names
    for name, matchers in matches:
        assert set(re.findall(r"(\w+)(?:=~|!=|!~|=)", matchers)) <= labels_of(name, samples)
    by = {label.strip() for some in re.findall(r"by \(([^)]*)\)", query) for label in some.split(",")}
    assert by <= set().union(*(labels_of(name, samples) for name, _ in matches))


def test_each_alert_names_a_remedy():
    rules = (OBSERVABILITY / "alerts.yaml").read_text("utf-8")
    alerts = re.findall(r"- alert: (\w+)", rules)
    page = (ROOT / "docs" / "operations.md").read_text("utf-8").split("\n## Alerts")[1].split("\n## ")[0]
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == alerts
    assert re.findall(r"operations\.md#(\w+)", rules) == [alert.lower() for alert in alerts]


def promtool(*arguments):
    binary = shutil.which("promtool")
    if binary is None:
        servers.missing("promtool: apt-get install prometheus")
    done = subprocess.run([binary, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_prometheus_evaluates_the_queries_and_fires_the_alerts(tmp_path):
    exprs = [query.replace("$__rate_interval", "1m") for query in queries().values()]
    rules = [{"record": f"query:{index}", "expr": expr} for index, expr in enumerate(exprs)]
    (tmp_path / "queries.yml").write_text(json.dumps({"groups": [{"name": "all", "rules": rules}]}))  # JSON is YAML
    promtool("check", "rules", str(tmp_path / "queries.yml"))
    promtool("check", "rules", str(OBSERVABILITY / "alerts.yaml"))
    promtool("test", "rules", str(ROOT / "tests" / "data" / "observability" / "alerts_test.yaml"))
