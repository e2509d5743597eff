"""Read a file of the pages that users were shown, with what they clicked.

A line of the file is a JSON object::

    {"query": "low blood pressure", "documents": ["d3", "d7"], "clicks": ["d7"], "session": "s1", "first_rank": 1,
     "teams": "AB", "experiment": "depth"}

``session``, ``first_rank``, ``teams`` and ``experiment`` may be left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.formats.files import bad_line
from osrerank.formats.lines import numbered_objects


@dataclass(frozen=True, slots=True)
class ShownPage:
    """A page of results, and the clicks on it.

    Attributes:
        query: the query text, as the user typed it.
        doc_ids: the ids of the documents on the page, from the top.
        clicked: the ids of the documents that the user clicked; all are on the page.
        session: the id of the user's session; empty if it is not known.
        first_rank: the rank of the page's first hit, from 1.
        teams: ``A`` or ``B`` for each document of an interleaved page; empty for other pages.
        experiment: the name of the experiment that the page belongs to; empty if none.
    """

    query: str
    doc_ids: tuple[str, ...]
    clicked: frozenset[str]
    session: str = ""
    first_rank: int = 1
    teams: str = ""
    experiment: str = ""

    def __post_init__(self) -> None:
        if self.teams and (len(self.teams) != len(self.doc_ids) or not set(self.teams) <= {"A", "B"}):
            raise ValueError(f"teams is {self.teams!r}; it must have A or B for each of {len(self.doc_ids)} documents")
        if self.first_rank < 1:
            raise ValueError(f"first_rank is {self.first_rank}; ranks begin with 1")
        if not self.clicked <= set(self.doc_ids):
            raise ValueError(f"{min(self.clicked - set(self.doc_ids))!r} was clicked and is not on the page")


def read_clicks(path: Path) -> Iterator[ShownPage]:
    """Yield the pages in a file, compressed or not.

    Raises:
        FormatError: a line is not an object of this form; the message has its number.
    """
    for number, line in numbered_objects(path):
        try:
            yield _page(line)
        except (TypeError, ValueError) as error:
            raise bad_line(path, number, str(error)) from None


def _page(line: dict[str, Any]) -> ShownPage:
    texts = {name: line.get(name, "") for name in ("query", "session", "teams", "experiment")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}; it must be a text")
    if not texts["query"].strip():
        raise ValueError("query is missing: each line needs the text that was searched")
    lists = {name: line.get(name) for name in ("documents", "clicks")}
    for name, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(doc_id, str) for doc_id in value):
            raise TypeError(f"{name} is {value!r}; it must be a list of document ids")
    rank = line.get("first_rank", 1)
    if type(rank) is not int:
        raise TypeError(f"first_rank is {rank!r}; it must be a whole number from 1 on")
    documents, clicks = tuple(lists["documents"] or ()), frozenset(lists["clicks"] or ())
    return ShownPage(doc_ids=documents, clicked=clicks, first_rank=rank, **texts)
