"""Mark the words of a hit that the query matched."""

from collections.abc import Mapping

from osrerank.embedded.analysis.tokens import Token
from osrerank.embedded.errors import Json, as_name, as_object, as_whole, illegal, only, unsupported
from osrerank.embedded.mapping.fields import Field, leaves
from osrerank.embedded.storage.index import Snapshot

_OPTIONS = frozenset({"pre_tags", "post_tags", "number_of_fragments"})
MAX_CHARACTERS = 1_000_000
"""Of a text; OpenSearch highlights no longer one (``index.highlight.max_analyzed_offset``)."""
FRAGMENT = 100
"""Characters of a fragment, about."""


class Highlighter:
    """Marks words of fields.

    Args:
        body: the search's ``highlight`` object.
        terms: field path -> terms of the query.

    Raises:
        Fault: 400 naming an option that is not supported.
    """

    def __init__(self, body: Json, snapshot: Snapshot, terms: Mapping[str, set[str]]) -> None:
        only("highlight", as_object(body, "highlight"), _OPTIONS | {"fields"})
        self._snapshot = snapshot
        self._terms = terms
        common = {key: value for key, value in body.items() if key != "fields"}
        self._wanted: dict[str, tuple[Field, Json]] = {}
        for pattern, options in as_object(body.get("fields", {}), "highlight.fields").items():
            only(f"highlight of {pattern}", as_object(options, f"highlight.fields.{pattern}"), _OPTIONS)
            for field in snapshot.fields.matching(pattern):
                if field.column in ("text", "keyword"):
                    self._wanted[field.path] = (field, {**common, **options})

    def mark(self, source: Json) -> dict[str, list[str]]:
        """Return field path -> marked fragments of a document, without fields that have no match."""
        marked = {}
        for field, options in self._wanted.values():
            terms = self._terms.get(field.path, set())
            values = [value for path, value in leaves(source) if path == field.source] if terms else []
            texts = [text for value in values if (text := field.convert(value)) is not None]
            if fragments := self._fragments(field, options, texts, terms):
                marked[field.path] = fragments
        return marked

    def _fragments(self, field: Field, options: Json, texts: list[str], terms: set[str]) -> list[str]:
        tags = [_tag(options, key, normal) for key, normal in (("pre_tags", "<em>"), ("post_tags", "</em>"))]
        limit = as_whole(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        found: list[tuple[int, str]] = []
        for text in texts:
            if len(text) > MAX_CHARACTERS:
                reason = f"The length of [{field.path}] has exceeded [{MAX_CHARACTERS}]"
                raise illegal(f"{reason} - maximum allowed to be analyzed for highlighting.")
            hits = [token for token in self._tokens(field, text) if token.term in terms]
            spans = [(0, len(text))] if limit == 0 else _spans(text, hits, FRAGMENT)
            for start, end in spans:
                inside = [token for token in hits if start <= token.start and token.end <= end]
                if inside:
                    found.append((len({token.term for token in inside}), _tagged(text, start, end, inside, tags)))
        best = sorted(range(len(found)), key=lambda at: -found[at][0])[: limit or None]
        return [found[at][1] for at in sorted(best)]

    def _tokens(self, field: Field, text: str) -> list[Token]:
        if field.column == "keyword":
            return [Token(text, 0, 0, len(text))]
        return self._snapshot.analyzer(field).tokens(text)


def _tag(options: Json, key: str, normal: str) -> str:
    """Return the one tag of ``pre_tags`` or ``post_tags``."""
    given = options.get(key, [normal])
    if not isinstance(given, list) or len(given) != 1:
        raise unsupported(f"[{key}: {given!r:.50}] in [highlight]", "give a list of one tag")
    return as_name(given[0], f"highlight.{key}")


def _spans(text: str, hits: list[Token], size: int) -> list[tuple[int, int]]:
    """Return windows of about this many characters, cut at white space, that contain the hits and do not overlap."""
    spans: list[tuple[int, int]] = []
    for token in hits:
        if spans and token.end <= spans[-1][1]:
            continue
        floor = spans[-1][1] if spans else 0
        start = max(floor, token.start - max(0, size - (token.end - token.start)) // 4)
        if start > floor:
            start = _next_break(text, start, token.start)
        end = max(token.end, min(len(text), start + size))
        if end < len(text):
            end = max(token.end, text.rfind(" ", token.end, end + 1))
        spans.append((start, end))
    return spans


def _next_break(text: str, start: int, limit: int) -> int:
    space = text.find(" ", start, limit)
    return limit if space < 0 else space + 1


def _tagged(text: str, start: int, end: int, tokens: list[Token], tags: list[str]) -> str:
    parts = []
    at = start
    for token in tokens:
        parts += [text[at : token.start], tags[0], text[token.start : token.end], tags[1]]
        at = token.end
    return "".join([*parts, text[at:end]]).strip()
