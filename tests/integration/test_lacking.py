"""The documents that searches found without vectors: builders of an index encode them first."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osrerank import Client, connect
from osrerank.indexing.backlog import Backlog
from osrerank.indexing.build import build_vectors
from osrerank.indexing.side_index import IndexStore, find_side_indices
from osrerank.testing import ManualClock
from osrerank.types import NEVER, Deadline, Side, Vectors
from tests.articles import fill
from tests.letters import Letters
from tests.waiting import wait_until

pytestmark = pytest.mark.integration

NOTES = {str(number): {"text": f"note {number} {'rare' if number >= 970 else 'common'}"} for number in range(1000)}


class NeverInTime(Letters):
    """Encodes no document under a deadline; notes which texts it encodes without one."""

    def __init__(self) -> None:
        super().__init__()
        self.encoded: list[str] = []

    def encode(self, texts: Sequence[str], side: Side, *, deadline: Deadline = NEVER) -> Vectors:
        if side == "document" and deadline.at_s is not None:
            return Vectors(np.full((len(texts), 26), np.nan, np.float32))
        self.encoded += texts if side == "document" else ()
        return super().encode(texts, side)


@pytest.fixture
def client(engine_url: str, no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    monkeypatch.setenv("OSRERANK_VECTORS", "index")
    with connect(engine_url, scorer=NeverInTime(), clock=ManualClock()) as made:
        made.indices.delete(index=["lacked", "osrerank-vectors-lacked"], ignore_unavailable=True)
        made.indices.create(index="lacked")
        fill(made, "lacked", NOTES)
        yield made


def side_of(client: Client) -> IndexStore:
    (side,) = find_side_indices(client, ["lacked"])
    side.create()
    return side


def search(client: Client, query: Any) -> Any:
    return client.search(query, index="lacked", rerank={"depth": 50}, size=50)["rerank"]


def told(client: Client, side: IndexStore, count: int) -> dict[tuple[str, str], int]:
    """Return what builders are told, once they are told of so many documents."""
    path, params, body = side._requests.request_reports(side.index)

    def read() -> dict[tuple[str, str], int]:
        side.refresh()
        parts = side._requests.parse_reports(client.transport.perform_request("POST", path, params=params, body=body))
        return dict(next(iter(parts.values()), {}))

    wait_until(lambda: len(read()) == count, 30)
    return read()


def test_what_searches_lacked_is_encoded_before_the_rest(client: Client) -> None:
    side, encoder = side_of(client), client.searcher.service.load_vectors(client.options_of("lacked")).encoder
    search(client, "rare")
    assert {index for index, _ in told(client, side, 30)} == {"lacked"}
    encoder.encoded.clear()
    built = build_vectors(client, "lacked")
    assert {text.split()[2] for text in encoder.encoded[:30]} == {"rare"}
    assert sorted(encoder.encoded) == sorted(note["text"] for note in NOTES.values())
    assert (built.documents, built.texts, built.encoded) == (1000, 1000, 1000)
    assert not side.take_reports()


def test_what_was_lacked_most_often_comes_first_and_is_taken_once(client: Client) -> None:
    side, clock = side_of(client), client.searcher.service.clock
    search(client, "rare")
    told(client, side, 30)
    for number in (999, 998, 999):
        search(client, {"match": {"text": f"{number}"}})
    backlog = Backlog({"lacked": side})
    first = backlog.take(1000)
    assert len(first["lacked"]) == 30
    clock.sleep(60)
    search(client, {"match": {"text": "999"}})
    assert told(client, side, 2) == {("lacked", "999"): 3, ("lacked", "998"): 1}
    assert Backlog({"lacked": side}).take(1) == {"lacked": ["999"]}
    assert Backlog({"lacked": side}).take(1) == {}


def test_a_report_waits_until_builders_took_the_last_one(client: Client) -> None:
    side, clock = side_of(client), client.searcher.service.clock
    search(client, "rare")
    before = told(client, side, 30)
    for _ in range(2):
        clock.sleep(60)
        search(client, {"match": {"text": "999"}})
    client._background.drain()
    assert told(client, side, 30) == before
    assert len(side.take_reports()) == 30
    clock.sleep(60)
    search(client, {"match": {"text": "999"}})
    assert told(client, side, 1) == {("lacked", "999"): 3}
