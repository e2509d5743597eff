"""On a warm machine every decision of a search is made once, and nothing is asked twice, whichever engine answers."""

import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import osrerank
from osrerank import Client, connect
from osrerank.indexing.build import build_vectors
from tests.articles import fill

PACKAGE = str(Path(osrerank.__file__).parent)
NOTES = [{"title": f"Note {number}", "text": f"note {number} on the pressure of air"} for number in range(20)]
ONCE = (
    "search", "make_plan", "plan_first_pass", "SearchPipelines.find", "FieldFinder.find",
    "RerankService.find_loaded_recipe", "perform", "read_ranking", "make_candidates", "load_models_and_vectors",
    "VectorStage.read_vectors", "Records.compute_keys", "Records.read_stored", "run_stages", "Recipe.rerank",
    "Pipeline.rerank", "explain_unsupported_language", "VectorStage.rerank", "BlendStage.rerank", "make_report",
    "make_page", "write_report",
)  # fmt: skip
"""Functions, by their qualified names."""
NEVER = ("make_recipe", "RerankService.select_models", "LoadedModel.load", "LoadedModel.model")


class Calls:
    """Counts the calls of each function of ours in all threads, apart from the embedded engine's."""

    def __init__(self) -> None:
        self.is_on = False
        self.frames: defaultdict[str, list[FrameType]] = defaultdict(list)

    def __call__(self, frame: FrameType, event: str, _argument: Any) -> None:
        file = frame.f_code.co_filename
        if self.is_on and event == "call" and file.startswith(PACKAGE) and "embedded" not in file:
            frames = self.frames[frame.f_code.co_qualname]
            if not any(frame is known for known in frames):
                frames.append(frame)

    def of(self, name: str) -> int:
        return len(self.frames[name])


@pytest.fixture
def calls() -> Iterator[Calls]:
    calls = Calls()
    threading.setprofile(calls)  # before the threads of a search begin
    yield calls
    threading.setprofile(None)
    sys.setprofile(None)


@pytest.fixture(params=["embedded", "file", "side index"])
def client(
    request: pytest.FixtureRequest, tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Client]:
    """A client of the embedded engine, or of OpenSearch with its vectors in this machine's file or on the cluster."""
    del calls  # the threads begin after it
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    url = f"embedded:{tmp_path}"
    if request.param != "embedded":
        url = request.getfixturevalue("opensearch_url")
    if request.param == "side index":
        (tmp_path / "vectors").touch()  # a folder that cannot be made
    with connect(url) as client:
        client.indices.delete(index="once*,osrerank-vectors-once", ignore=[404])
        fill(client, "once", NOTES)
        build_vectors(client, "once")
        yield client


@pytest.mark.integration
def test_every_decision_of_a_search_is_made_once(client: Client, calls: Calls) -> None:
    for _ in range(2):
        client.search("pressure of water", index="once", rerank=True)
    sys.setprofile(calls)
    calls.is_on = True
    answer = client.search("pressure of air", index="once", rerank=True)
    calls.is_on = False
    assert (answer["rerank"]["applied"], answer["rerank"]["stages"][0]["known"]) == (True, len(NOTES))
    assert {name: calls.of(name) for name in ONCE if calls.of(name) != 1} == {}
    assert {name: calls.of(name) for name in NEVER if calls.of(name)} == {}
    assert calls.of("VectorStage.prepare_text") == len(NOTES)
