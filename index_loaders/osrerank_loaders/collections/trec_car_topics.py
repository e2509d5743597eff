"""Derive TREC-CAR's queries from outlines and its judgments from pages.

A query is a page or one of its sections; its id is the page id and the heading ids joined by '/'. A heading may contain
a '/' itself, so headings are read from the outline, never split from an id.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from osrerank.formats.common_layout import Judgment
from osrerank.formats.sources import SourceFile, files_of, open_sources, record_error
from osrerank.types import Query
from osrerank_loaders.collections.trec_car import OUTLINES, PAGES, PARAGRAPH, SECTION, read_items

Level = Literal["hierarchical", "toplevel", "article"]
Style = Literal["headings", "dl4marco"]


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a page or section: its text, and its percent-encoded id."""

    text: str
    heading_id: str


@dataclass(frozen=True, slots=True)
class PageSection:
    """A page or section: the headings that lead to it, the page's first, and the paragraphs directly in it."""

    path: tuple[Heading, ...]
    paragraph_ids: tuple[str, ...]

    @property
    def query_id(self) -> str:
        """The id of the section's query."""
        return "/".join(heading.heading_id for heading in self.path)


def read_sections(paths: Sequence[str]) -> Iterator[PageSection]:
    """Read every page of an outline or page file: first the page itself, then its sections, depth first.

    Raises:
        FormatError: the CBOR is damaged, or an item is not a page.
    """
    for source in open_sources(files_of(paths)):
        for number, page in enumerate(read_items(source, kinds=(PAGES, OUTLINES)), 1):
            yield from _page(source, number, page)


def _page(source: SourceFile, number: int, page: Any) -> list[PageSection]:
    try:
        name, page_id, skeleton = page[1], page[2].decode(), page[3]
        return list(_sections((Heading(name, page_id),), skeleton))
    except (TypeError, ValueError, IndexError, AttributeError) as error:
        raise record_error(
            source, f"item {number} is not a page [tag, name, id, skeleton]; is this a page file?"
        ) from error


def _sections(path: tuple[Heading, ...], skeleton: Iterable[Any]) -> Iterator[PageSection]:
    parts = list(skeleton)
    yield PageSection(path, tuple(part[1][1].decode() for part in parts if part[0] == PARAGRAPH))
    for part in parts:
        if part[0] == SECTION:
            _tag, heading, heading_id, children = part
            yield from _sections((*path, Heading(heading, heading_id.decode())), children)


def queries(
    sections: Iterable[PageSection], level: Level, *, style: Style = "headings", pages: bool = False
) -> Iterator[Query]:
    """Yield the queries of a level, each once, in the outline's order.

    Args:
        sections: the sections of all pages.
        level: ``hierarchical`` for all sections of a page, ``toplevel`` for those of the first level, ``article`` for
            the pages. A page with paragraphs before its first heading counts as ``hierarchical`` too, as in the
            judgments of v2.0 (132 of benchmarkY1-test's 2,254 queries); v1.5 leaves such paragraphs out.
        style: the form of the texts. ``headings`` joins the page's name and the headings; ``dl4marco`` is what Nogueira
            and Cho (2019) gave to BERT: the id without ``enwiki:``, with spaces for ``%20`` and ``/``, but with all
            other escapes.
        pages: whether every page counts as ``hierarchical``; for outlines, which have no paragraphs.
    """
    yielded_ids: set[str] = set()
    for section in sections:
        depth = len(section.path) - 1
        is_hierarchical = depth > 0 or pages or bool(section.paragraph_ids)
        is_selected = {"hierarchical": is_hierarchical, "toplevel": depth == 1, "article": depth == 0}[level]
        if is_selected and section.query_id not in yielded_ids:
            yielded_ids.add(section.query_id)
            yield Query(section.query_id, _TEXTS[style](section))


def _from_headings(section: PageSection) -> str:
    return " ".join(heading.text for heading in section.path)


def _from_id(section: PageSection) -> str:
    return section.query_id.removeprefix("enwiki:").replace("%20", " ").replace("/", " ")


_TEXTS: dict[Style, Callable[[PageSection], str]] = {"headings": _from_headings, "dl4marco": _from_id}


def judgments(sections: Iterable[PageSection], level: Level) -> list[Judgment]:
    """Return a level's judgments, sorted: paragraphs are relevant to their section, first-level section or page."""
    judged: set[Judgment] = set()
    for section in sections:
        path = section.path[: {"hierarchical": len(section.path), "toplevel": 2, "article": 1}[level]]
        if level == "toplevel" and len(path) == 1:
            continue
        query_id = "/".join(heading.heading_id for heading in path)
        judged.update(Judgment(query_id, paragraph_id, 1) for paragraph_id in section.paragraph_ids)
    return sorted(judged)
