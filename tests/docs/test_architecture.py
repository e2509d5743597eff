"""docs/contributing.md lists the files that a default search passes through, and no others."""

import re
import sys
import threading
from pathlib import Path

import pytest

import osrerank
from osrerank.indexing.build import build_vectors

PACKAGE = Path(osrerank.__file__).parent
NOTES = {str(number): f"note {number}: a text about the pressure of water and air" for number in range(20)}


class Tracer:
    """Notes the named functions of ours that all threads call while it is on, apart from the embedded engine's."""

    def __init__(self):
        self.found: dict[str, set[str]] = {}
        self.is_on = False

    def __call__(self, frame, event, _argument):
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if self.is_on and event == "call" and file.startswith(str(PACKAGE)) and not name.startswith("<"):
            relative_path = str(Path(file).relative_to(PACKAGE))
            if not relative_path.startswith("embedded/"):
                self.found.setdefault(relative_path, set()).add(frame.f_code.co_qualname)


@pytest.fixture
def tracer():
    tracer = Tracer()
    threading.setprofile(tracer)  # before the threads of a search begin
    yield tracer
    threading.setprofile(None)
    sys.setprofile(None)


def test_the_path_of_a_search_is_as_documented(tracer, tmp_path, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path / "vectors"))
    with osrerank.connect(f"embedded:{tmp_path}") as client:
        for number, text in NOTES.items():
            client.index(index="notes", id=number, body={"title": f"Note {number}", "text": text})
        client.indices.refresh(index="notes")
        build_vectors(client, "notes")
        client.search("pressure of water", index="notes", rerank=True)
        tracer.is_on = True
        sys.setprofile(tracer)
        client.search("pressure of air", index="notes", rerank=True)
        tracer.is_on = False
    page = (PACKAGE.parent / "docs" / "contributing.md").read_text("utf-8")
    path = page.partition("## The path of a search")[2].partition("\n## ")[0].partition("What differs")[0]
    assert sorted(tracer.found) == sorted(set(re.findall(r"\.\./osrerank/([\w/]+\.py)", path)))
