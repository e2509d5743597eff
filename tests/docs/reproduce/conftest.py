"""What the page's commands find in place of the internet: a hub, a publisher's server, a machine with little data."""

import contextlib
import functools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.docs.reproduce.forks import osrerank_program
from tests.hub import Hub, running_hub
from tests.servers import ROOT

PAGE = ROOT / "docs" / "reproduce.md"
SECTIONS = {
    "small": "The papers' pipeline, small",
    "monobert": "monoBERT on MS MARCO",
    "trec-car": "monoBERT on TREC-CAR",
    "multi-stage": "monoBERT, duoBERT, target-corpus pre-training",
    "icip": "ICIP at TREC 2020",
    "birch": "Birch",
}
"""The headings of the papers' sections."""
Collections = Mapping[str, Mapping[str, bytes]]
RunSection = Callable[..., str]


def blocks(name: str) -> list[str]:
    """Return the blocks of commands of a paper's section; the first has the settings."""
    section = PAGE.read_text("utf-8").partition(f"\n## {SECTIONS[name]}\n")[2].partition("\n## ")[0]
    return re.findall(r"```sh\n(.*?)```", section, re.DOTALL)


@pytest.fixture(scope="session")
def hub() -> Iterator[Hub]:
    """A hub with the checkpoints that the page names, of a BERT that ranks (`tests.docs.reproduce.bert`)."""
    pytest.importorskip("torch")
    from tests.docs.reproduce.bert import repository

    classifier, birch, encoder = (repository(head) for head in ("classifier", "next-sentence", "encoder"))
    checkpoints = {
        "castorini/monobert-large-msmarco-finetune-only": classifier,
        "google-bert/bert-large-uncased": encoder,
        "google-bert/bert-large-uncased-whole-word-masking": encoder,
        **{f"Capreolus/birch-bert-large-{name}": birch for name in ("mb", "car_mb", "msmarco_mb")},
    }
    with running_hub("castorini/monobert-large-msmarco", classifier, checkpoints) as running:
        yield running


@pytest.fixture(scope="session")
def environment(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of the commands."""
    folder = tmp_path_factory.mktemp("osrerank")
    told = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hub"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_XET": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "index_loaders", "workers")),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    with osrerank_program(folder, told) as programs:
        folders = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
        yield {**told, "PATH": os.pathsep.join(folders)}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Stay silent."""


@contextlib.contextmanager
def publisher(collections: Collections, folder: Path) -> Iterator[Path]:
    """Serve files; yield the catalogue that names them, some without a size or an MD5."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    address = f"http://127.0.0.1:{server.server_port}"
    folder.mkdir()
    listed = {}
    for name, files in collections.items():
        (folder / name).mkdir()
        for file, content in files.items():
            (folder / name / file).write_bytes(content)
        entries = [{"name": file, "url": f"{address}/{name}/{file}"} for file in files]
        listed[name] = {"about": "a stand-in", "files": entries}
    catalogue = folder / "catalogue.json"
    catalogue.write_text(json.dumps(listed))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield catalogue
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def run_section(environment: dict[str, str], tmp_path: Path) -> RunSection:
    """Run a section's commands with other settings' values and places of files; return what they print."""

    def run(name: str, collections: Collections, settings: str, files: Mapping[str, bytes] | None = None) -> str:
        work = tmp_path / "work"
        work.mkdir()
        for file, content in (files or {}).items():
            (work / file).parent.mkdir(parents=True, exist_ok=True)
            (work / file).write_bytes(content)
        first, *other_blocks = blocks(name)
        assert names(settings) == names(first), "the section has other settings"
        script = work / "section.sh"
        with publisher(collections, tmp_path / "publisher") as catalogue:
            lines = "\n".join(["set -euo pipefail", settings, *other_blocks])
            script.write_text(lines.replace("osrerank download ", f"osrerank download --catalogue {catalogue} "))
            command = ["bash", "-x", script]
            ended = subprocess.run(
                command, cwd=work, env=environment, capture_output=True, text=True, check=False, timeout=280
            )
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    return run


def names(settings: str) -> list[str]:
    """Return the names that a block sets."""
    return re.findall(r"^(?:export )?(\w+)=", settings, re.MULTILINE)
