"""A rolling upgrade: workers and clients of the messages' version before, from a wheel, beside this one's."""

import json
import os
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from osrerank.scoring.registry import load_scorer
from osrerank.scoring.remote.messages import VERSION
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.types import Deadline
from tests import servers
from tests.workers import TINY, WorkerGroup

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = "osrerank/scoring/remote/messages.py"
QUERY, DOCUMENTS, TUPLES = (
    "low salt",
    [f"note {n}: low salt and much water" for n in range(20)],
    [(n,) for n in range(20)],
)
SEARCHES = 500
CLIENT = """
import json, sys
from osrerank.scoring.remote.scorer import RemoteScorer
from osrerank.types import Deadline
url, model, query, documents, searches = sys.argv[1], sys.argv[2], *json.loads(sys.argv[3])
scorer = RemoteScorer(url, model, queue_chunks=64)
tuples = [(n,) for n in range(len(documents))]
found = [scorer.score(query, documents, tuples, deadline=Deadline.after_ms(20000)) for _ in range(searches)]
scorer.close()
print(json.dumps([scores.values.tolist() for scores in found]))
"""


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=servers.ROOT, check=True, capture_output=True).stdout


def before(folder: Path) -> Path:
    """Return the Python of an environment that has the wheel of the last commit before this version of the messages."""
    try:
        changed = git("log", "-1", "--format=%H", f"-SVERSION = {VERSION}\n", "--", MESSAGES).decode().strip()
        archive = git("archive", f"{changed}^")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("the commit before this version of the messages is not here")
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "-x", "-C", source], input=archive, check=True)
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, source]
    subprocess.run([sys.executable, *build], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    where = [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        wheel.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return python


def run_old(python: Path, arguments: Sequence[str], **options: object) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.Popen([python, "-W", "ignore", *arguments], env=environment, cwd=python.parent, **options)


def test_a_thousand_searches_of_both_versions_on_one_broker(tmp_path: Path) -> None:
    python = before(tmp_path)
    expected = load_scorer(TINY, backend="onnx", threads=1).score(QUERY, DOCUMENTS, TUPLES).values
    with servers.start_redis(servers.redis_binary(), tmp_path / "redis") as (url, _process):
        group = WorkerGroup(url, tmp_path / "group", options=("--threads", "1"))
        worker = ["-m", "osrerank_workers", "--model", TINY, "--broker-url", url, "--threads", "1"]
        with (tmp_path / "old.log").open("wb") as log:
            old = run_old(python, worker, stdout=log, stderr=log)
        try:
            group.start(1)
            wait_for(tmp_path / "old.log", "takes chunks of")
            asked = json.dumps([QUERY, DOCUMENTS, SEARCHES])
            client = run_old(python, ["-c", CLIENT, url, TINY, asked], stdout=subprocess.PIPE)
            scorer = RemoteScorer(url, TINY, queue_chunks=64)
            new = [scorer.score(QUERY, DOCUMENTS, TUPLES, deadline=Deadline.after_ms(20_000)) for _ in range(SEARCHES)]
            scorer.close()
            theirs = json.loads(client.communicate(timeout=300)[0])
            assert client.returncode == 0
        finally:
            old.terminate()
            assert old.wait(60) == 0
            assert group.stop() == [0]
    assert (len(new), len(theirs)) == (SEARCHES, SEARCHES)
    assert {scores.values.tobytes() for scores in new} == {expected.tobytes()}
    assert {np.array(values, dtype=np.float32).tobytes() for values in theirs} == {expected.tobytes()}
    for log in (group.log(), (tmp_path / "old.log").read_text()):
        assert "refused" not in log


def wait_for(log: Path, words: str) -> None:
    give_up = time.monotonic() + 120
    while words not in log.read_text():
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.1)
