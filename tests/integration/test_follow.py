"""Builders that follow an index's changes: several at once, killed at any moment, on a real cluster."""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from osrerank import Client, connect
from osrerank.indexing.build import MAX_BATCH_SIZE, Builder, BuildSummary, build_vectors
from osrerank.indexing.documents import document_vectors
from osrerank.indexing.prune import prune_indices
from osrerank.indexing.side_index import find_side_indices
from osrerank.vectors.index import side_index
from tests.articles import fill
from tests.letters import Letters
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parametrize("engine_url", ["opensearch", "elasticsearch"], indirect=True),
]

COUNT = 1500
NOTES = [{"text": f"note {number}"} for number in range(COUNT)]
BUILDER = """
import signal
import sys
from osrerank import connect
from osrerank.indexing import build
from tests.letters import Letters

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
url, index, log, what = sys.argv[1:]
build.LEASE_S, build.FOLLOW_S = 3.0, 0.2

class Logged(Letters):
    def encode(self, texts, side, **options):
        found = super().encode(texts, side, **options)
        with open(log, "a") as file:
            file.write("".join(f"{text}\\n" for text in texts))
        return found

client = connect(url, scorer=Logged(s_per_text=0.005))
getattr(build, what)(client, index)
"""


@pytest.fixture
def client(engine_url: str, no_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("OSRERANK_VECTORS_FOLDER", str(no_folder))
    with connect(engine_url, scorer=Letters()) as made:
        yield made


@pytest.fixture
def notes(client: Client) -> Iterator[str]:
    """An index of three shards with the notes."""
    name = "followed"
    client.indices.delete(index=[name, side_index(name)], ignore_unavailable=True)
    client.indices.create(index=name, body={"settings": {"number_of_shards": 3, "number_of_replicas": 0}})
    fill(client, name, NOTES)
    yield name
    client.indices.delete(index=[name, side_index(name)], ignore_unavailable=True)


def begun(url: str, index: str, log: Path, what: str = "build_vectors") -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", BUILDER, url, index, str(log), what])


def missing(client: Client, index: str, texts: list[str]) -> int:
    (side,) = find_side_indices(client, [index])
    side.refresh()
    vectors = document_vectors(client, index)
    return len({*texts}) - len(vectors.records.read_from(side, vectors.records.compute_keys(texts)))


def test_two_builders_share_an_index_and_encode_nothing_twice(
    client: Client, engine_url: str, notes: str, tmp_path: Path
) -> None:
    logs = [tmp_path / "one", tmp_path / "two"]
    builders = [begun(engine_url, notes, log) for log in logs]
    assert [builder.wait(120) for builder in builders] == [0, 0]
    encoded = [log.read_text().splitlines() for log in logs]
    assert all(encoded)
    assert sorted(encoded[0] + encoded[1]) == sorted(note["text"] for note in NOTES)
    assert client.coverage(notes).built == COUNT


def test_builders_that_are_killed_at_any_moment_lose_nothing(
    client: Client, engine_url: str, notes: str, tmp_path: Path
) -> None:
    log, kills, chance = tmp_path / "log", 5, random.Random()
    builders = [begun(engine_url, notes, log) for _ in range(2)]
    for _ in range(kills):
        time.sleep(chance.uniform(0.5, 3))
        at = chance.randrange(2)
        builders[at].kill()
        builders[at].wait()
        builders[at] = begun(engine_url, notes, log)
    assert [builder.wait(120) for builder in builders] == [0, 0]
    texts = [note["text"] for note in NOTES]
    assert missing(client, notes, texts) == 0
    assert client.coverage(notes).built == COUNT
    encoded = Counter(log.read_text().splitlines())
    assert set(encoded) == {*texts}
    assert encoded.total() - COUNT <= kills * MAX_BATCH_SIZE / 2  # what a killed one had encoded, and not yet stored


def test_following_sees_changes_deletions_and_a_rebuilt_index(
    client: Client, engine_url: str, notes: str, tmp_path: Path
) -> None:
    client.indices.put_alias(index=notes, name="notes-now")
    follower = begun(engine_url, "notes-now", tmp_path / "log", "follow_vectors")
    try:
        wait_until(lambda: client.coverage("notes-now").lacks == 0, 60)
        fill(client, notes, {"7": {"text": "changed"}, "new": {"text": "new"}})
        for number in range(100, 200):
            client.delete(index=notes, id=str(number))
        client.indices.refresh(index=notes)
        wait_until(lambda: client.coverage("notes-now").lacks == 0, 60)
        assert client.coverage("notes-now").built == COUNT + 1 - 100
        assert missing(client, notes, ["changed", "new"]) == 0
        fill(client, f"{notes}-2", [{"text": f"rebuilt {number}"} for number in range(300)])
        switch = [
            {"remove": {"index": notes, "alias": "notes-now"}},
            {"add": {"index": f"{notes}-2", "alias": "notes-now"}},
        ]
        client.indices.update_aliases(body={"actions": switch})
        wait_until(lambda: client.coverage("notes-now").lacks == 0, 60)
        assert client.coverage("notes-now").built == 300
        follower.send_signal(signal.SIGINT)
        assert follower.wait(30) != 0
    finally:
        follower.kill()
        follower.wait()
        client.indices.delete(index=[f"{notes}-2", side_index(f"{notes}-2")], ignore_unavailable=True)


def test_an_alias_that_moves_during_a_build_is_left_to_the_next(client: Client, notes: str) -> None:
    fill(client, f"{notes}-2", NOTES[:10])
    client.indices.put_alias(index=notes, name="notes-now")
    try:
        builder = Builder(client, "notes-now", None)
        client.indices.put_alias(index=f"{notes}-2", name="notes-now")
        assert builder.build_by_sequence_number(builder.read_heads()).documents == COUNT
        assert build_vectors(client, "notes-now").documents == 10
    finally:
        client.indices.delete(index=[f"{notes}-2", side_index(f"{notes}-2")], ignore_unavailable=True)


def test_what_was_indexed_and_not_refreshed_is_built(client: Client, notes: str) -> None:
    build_vectors(client, notes)
    client.index(index=notes, id="late", body={"text": "late"})
    assert build_vectors(client, notes).documents == 1
    assert missing(client, notes, ["late"]) == 0


def test_an_index_made_anew_or_cloned_is_read_whole(client: Client, notes: str) -> None:
    build_vectors(client, notes)
    client.indices.put_settings(index=notes, body={"index.blocks.write": True})
    client.indices.clone(index=notes, target=f"{notes}-2", body={"settings": {"index.blocks.write": None}})
    client.indices.delete(index=notes)
    fill(client, notes, NOTES[:10])
    try:
        assert build_vectors(client, notes).documents == 10
        client.cluster.health(index=f"{notes}-2", wait_for_status="yellow")
        assert build_vectors(client, f"{notes}-2").documents == COUNT
    finally:
        client.indices.delete(index=[f"{notes}-2", side_index(f"{notes}-2")], ignore_unavailable=True)


def test_pruning_an_index_leaves_what_another_and_a_later_build_need(client: Client, notes: str) -> None:
    fill(client, f"{notes}-2", NOTES[:10])
    try:
        for name in (notes, f"{notes}-2"):
            build_vectors(client, name)
        client.delete(index=notes, id="0", refresh=True)
        assert prune_indices(client, [notes]) == COUNT - 1
        assert client.coverage(f"{notes}-2").built == 10
        assert build_vectors(client, notes) == BuildSummary()  # the progress was kept
    finally:
        client.indices.delete(index=[f"{notes}-2", side_index(f"{notes}-2")], ignore_unavailable=True)
