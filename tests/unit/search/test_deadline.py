"""When the time of a search begins."""

from pathlib import Path
from typing import Any

from osrerank import connect
from osrerank.testing import FunctionScorer, ManualClock


def test_reading_the_mapping_takes_of_the_searchs_time(tmp_path: Path) -> None:
    clock = ManualClock()
    client = connect(f"embedded:{tmp_path}", scorer=FunctionScorer(), clock=clock)
    client.index(index="notes", id="1", body={"text": "low salt"}, refresh=True)
    perform = client.transport.perform_request

    def slow(method: str, url: str, *args: Any, **options: Any) -> Any:
        if "_mapping" in url:
            clock.sleep(0.3)
        return perform(method, url, *args, **options)

    client.transport.perform_request = slow  # type: ignore[method-assign]
    response = client.search("salt", index="notes", rerank={"deadline_ms": 250})
    assert response["rerank"]["applied"] is False
    assert "the deadline passed" in response["rerank"]["reason"]
    again = client.search("salt", index="notes", rerank={"deadline_ms": 60_000})
    assert again["rerank"]["applied"] is True
    client.close()
