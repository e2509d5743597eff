"""What a search with nothing set does not do."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import osrerank.options
from osrerank import connect
from osrerank.testing import CannedTransport, FunctionScorer
from tests.rankings import response_of


def test_a_default_search_reads_no_group_of_options() -> None:
    client = connect(
        "http://localhost:9", scorer=FunctionScorer(), transport_class=CannedTransport, answer=response_of(["a", "bb"])
    )
    folder, called = Path(osrerank.options.__file__).parent, set()

    def seen(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            called.add(Path(frame.f_code.co_filename))

    client.search("low", index="i", rerank=True)
    sys.setprofile(seen)
    try:
        answer = client.search("low", index="i", rerank=True)
    finally:
        sys.setprofile(None)
    assert answer["rerank"]["applied"] is True
    assert {path.name for path in called if path.parent == folder} == {"defaults.py", "rerank.py"}
