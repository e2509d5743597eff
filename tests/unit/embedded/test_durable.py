"""What is acknowledged stays, whatever happens to the search index of this or another index."""

from collections.abc import Callable
from pathlib import Path

import pytest
from opensearchpy import OpenSearch

from osrerank.embedded.engine import MAX_WRITERS
from osrerank.embedded.faults import Fault
from osrerank.embedded.store import Row, Store

Opener = Callable[..., OpenSearch]


def test_damage_to_one_index_takes_nothing_from_another(engine: OpenSearch, tmp_path: Path) -> None:
    never = {"settings": {"refresh_interval": "-1"}}
    for number in range(MAX_WRITERS + 1):
        engine.indices.create(index=f"i{number}", body=never)
        engine.index(index=f"i{number}", id="mapped", body={"text": "x"}, refresh=True)
    for number in range(1, MAX_WRITERS + 1):  # these have their writers open, with a document that waits
        engine.index(index=f"i{number}", id="waits", body={"text": "x"})
        (tmp_path / "engine" / f"index-{number + 1}").rename(tmp_path / f"gone-{number}")
    for doc_id in ("1", "2", "3"):
        engine.index(index="i0", id=doc_id, body={"text": "x"})
    assert [engine.exists(index="i0", id=doc_id) for doc_id in ("mapped", "1", "2", "3")] == [True] * 4
    engine.indices.refresh(index="i0")
    assert engine.count(index="i0")["count"] == 4
    for number in range(1, MAX_WRITERS + 1):
        assert engine.exists(index=f"i{number}", id="waits")


def test_sequence_number_given_twice_is_an_error(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.transaction():
        index = store.create("a", {}, {}, {})
    with store.transaction():
        store.put(index, [Row(1, "one", 1, "{}"), Row(2, "one", 2, "{}")])
    with pytest.raises(Fault, match="UNIQUE"), store.transaction():
        store.put(index, [Row(2, "two", 1, "{}")])
    assert store.get(index, "one") == Row(2, "one", 2, "{}")
    store.close()
