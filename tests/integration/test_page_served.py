"""What the comparison page asks of the engines, on both, and the page as the commands serve it."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request

import pytest

from tests.servers import ROOT, free_port
from tests.serving import is_ready
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

TINY_DUO = str(ROOT / "tests" / "data" / "tiny-bert-duo")
START_TIMEOUT_S = 120


def fetch(port, path, **parameters):
    address = f"http://127.0.0.1:{port}{path}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


@pytest.fixture
def demo(tmp_path):
    """The port of `osrerank demo --ui` with a duo model; it must end by itself when told to."""
    port = free_port()
    options = ["--url", f"embedded:{tmp_path}", "--duo-model", TINY_DUO, "demo", "--ui", "--port", str(port)]
    process = subprocess.Popen(
        [sys.executable, "-m", "osrerank", *options], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: is_ready(port) or process.poll() is not None, START_TIMEOUT_S)
        assert process.poll() is None, process.stderr.read()
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) in (0, -signal.SIGTERM)
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_the_demo_shows_its_questions_on_the_page(demo):
    assert b"<title>osrerank: compare</title>" in fetch(demo, "/ui")
    offered = json.loads(fetch(demo, "/ui/config"))
    assert offered["indexes"] == ["osrerank-demo"]
    assert [pipeline["name"] for pipeline in offered["pipelines"] if not pipeline["reason"]] == [
        "vectors",
        "vectors-duo",
    ]
    assert len(offered["queries"]) == 100
    assert all(query["is_judged"] for query in offered["queries"])
    parameters = {"q": offered["queries"][0]["text"], "index": "osrerank-demo", "pipeline": "vectors-duo", "depth": 10}
    outcome = json.loads(fetch(demo, "/ui/search", **parameters))
    assert outcome["applied"] is True
    assert {stage["name"]: stage["inferences"] for stage in outcome["stages"]} == {"vectors": 10, "blend": 0, "duo": 90}
    assert outcome["judged"]["relevant"] == 1
