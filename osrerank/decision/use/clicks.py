"""Read a file of result pages that users saw, with their clicks.

Each line of the file is a JSON object::

    {"query": "low blood pressure", "documents": ["d3", "d7"], "clicks": ["d7"], "session": "s1", "first_rank": 1,
     "teams": "AB", "experiment": "depth"}

``session``, ``first_rank``, ``teams`` and ``experiment`` are optional.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from osrerank.formats.files import line_error
from osrerank.formats.lines import read_numbered_objects


@dataclass(frozen=True, slots=True)
class ShownPage:
    """A page of results, and the clicks on it.

    Attributes:
        query: the query text, as the user typed it.
        doc_ids: the ids of the page's documents, from top to bottom.
        clicked: the ids of the clicked documents, all of which are on the page.
        session: the id of the user's session, or "" if unknown.
        first_rank: the rank of the page's first document: 1 on the first page, and 11 on the second of ten documents.
        teams: the ranking that each document of an interleaved page comes from, such as ``ABBA``. Empty for other
            pages.
        experiment: the name of the page's experiment, or "".
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
            raise ValueError(
                f"teams is {self.teams!r}; it must have an A or a B for each of the {len(self.doc_ids)} documents"
            )
        if self.first_rank < 1:
            raise ValueError(f"first_rank is {self.first_rank}; it must be at least 1")
        if not self.clicked <= set(self.doc_ids):
            raise ValueError(f"clicks contains {min(self.clicked - set(self.doc_ids))!r}, which is not in documents")


def read_clicks(path: Path) -> Iterator[ShownPage]:
    """Yield the pages in a file, compressed or not.

    Raises:
        FormatError: a line is not a valid page. The message contains its number.
    """
    for number, page_fields in read_numbered_objects(path):
        try:
            yield _parse_page(page_fields)
        except (TypeError, ValueError) as error:
            raise line_error(path, number, str(error)) from None


def _parse_page(page_fields: dict[str, Any]) -> ShownPage:
    strings = {name: page_fields.get(name, "") for name in ("query", "session", "teams", "experiment")}
    for name, value in strings.items():
        if not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}; it must be a string")
    if not strings["query"].strip():
        raise ValueError("query is missing; each line needs the text of the query")
    lists = {name: page_fields.get(name) for name in ("documents", "clicks")}
    for name, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(doc_id, str) for doc_id in value):
            raise TypeError(f"{name} is {value!r}; it must be a list of document ids")
    rank = page_fields.get("first_rank", 1)
    if type(rank) is not int:
        raise TypeError(f"first_rank is {rank!r}; it must be a whole number from 1 on")
    doc_ids, clicked = tuple(lists["documents"] or ()), frozenset(lists["clicks"] or ())
    return ShownPage(doc_ids=doc_ids, clicked=clicked, first_rank=rank, **strings)
