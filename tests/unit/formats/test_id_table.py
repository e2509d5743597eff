"""Tables of document ids on disk: lookups, reuse, and damage."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from osrerank.errors import LoaderError
from osrerank.formats.id_table import IdRow, IdTable

ROWS = [IdRow(row_id, number, number * 10) for number, row_id in enumerate(["b", "a", "ä", "a", "b", "a", "\ud800"], 1)]


def unread() -> Iterator[IdRow]:
    raise AssertionError("the rows are not needed")
    yield


def test_the_first_row_of_a_repeated_id_is_found_in_any_thread() -> None:
    table = IdTable.create_temporary(ROWS)
    assert len(table) == 7
    assert [table.get(row_id) for row_id in ("a", "ä", "c", "\ud800")] == [ROWS[1], ROWS[2], None, ROWS[6]]
    assert "b" in table
    assert "B" not in table
    assert len(IdTable.create_temporary([])) == 0
    table, found_rows = IdTable.create_temporary([IdRow("a", 1, "fox")]), []
    asking = threading.Thread(target=lambda: found_rows.append(table.get("a")))
    asking.start()
    asking.join()
    assert found_rows == [IdRow("a", 1, "fox")]


def test_a_stored_id_table_is_reused_for_the_same_key_only(tmp_path: Path) -> None:
    path = tmp_path / "ids"
    assert IdTable.open_existing(path, "key") is None
    table = IdTable.create(path, "key", ROWS)
    opened = IdTable.open_existing(path, "key")
    assert opened is not None
    assert (len(table), len(opened), opened.get("b")) == (7, 7, ROWS[0])
    assert [file.name for file in tmp_path.iterdir()] == ["ids"]
    assert IdTable.open_existing(path, "other key") is None
    IdTable.create(path, "other key", ROWS[:1])
    assert IdTable.open_existing(path, "key") is None
    path.write_bytes(b"something else")
    assert IdTable.open_existing(path, "other key") is None


def test_an_id_table_that_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    def refuse(table: IdTable) -> None:
        raise ValueError(str(table.find_repeats(1)))

    with pytest.raises(ValueError, match="id='a', first_number=2, number=4"):
        IdTable.create(tmp_path / "ids", "key", ROWS, check=refuse)
    with pytest.raises(AssertionError, match="not needed"):
        IdTable.create(tmp_path / "ids", "key", unread())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(LoaderError, match=r"no-folder: No such file"):
        IdTable.create(tmp_path / "no-folder" / "ids", "key", ROWS)


def test_a_damaged_id_table_is_named(tmp_path: Path) -> None:
    rows = [IdRow(f"{number:05}", number, "text " * 20) for number in range(5_000)]
    path = tmp_path / "ids"
    IdTable.create(path, "key", rows)
    content = bytearray(path.read_bytes())
    content[3 * 4_096 :] = bytes(len(content) - 3 * 4_096)  # the first pages have tables' names and the origin
    path.write_bytes(content)
    table = IdTable.open_existing(path, "key")
    assert table is not None
    with pytest.raises(LoaderError, match=r"the sorted ids in .*ids cannot be read \(.*\); delete the file"):
        table.get("02500")
