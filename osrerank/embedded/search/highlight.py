"""Mark the words of a hit that the query matched."""

from collections.abc import Mapping
from typing import Any

from osrerank.embedded.analysis.tokens import Token
from osrerank.embedded.errors import Json, as_object, as_whole, only, unsupported
from osrerank.embedded.mapping import values
from osrerank.embedded.mapping.fields import Field, leaves
from osrerank.embedded.storage.index import Snapshot

_OPTIONS = frozenset(
    {"pre_tags", "post_tags", "fragment_size", "number_of_fragments", "require_field_match", "type", "no_match_size",
     "order", "encoder", "boundary_scanner", "boundary_scanner_locale"}
)  # fmt: skip
_KINDS = ("plain", "unified")


class Highlighter:
    """Marks words of fields.

    Args:
        body: the search's ``highlight`` object.
        terms: field path -> terms of the query, or of its ``highlight_query``.

    Raises:
        Fault: 400 naming an option that is not supported.
    """

    def __init__(self, body: Json, snapshot: Snapshot, terms: Mapping[str, set[str]]) -> None:
        only("highlight", body, _OPTIONS | {"fields", "highlight_query"})
        self._snapshot = snapshot
        self._terms = terms
        common = {key: value for key, value in body.items() if key not in ("fields", "highlight_query")}
        fields = body.get("fields", {})
        listed = fields if isinstance(fields, list) else [{name: options} for name, options in fields.items()]
        self._wanted: list[tuple[Field, Json]] = []
        for one in listed:
            for pattern, options in one.items():
                only(f"highlight of {pattern}", as_object(options, f"highlight.fields.{pattern}"), _OPTIONS)
                self._add(pattern, {**common, **options})

    def _add(self, pattern: str, options: Json) -> None:
        if options.get("type", "unified") not in _KINDS:
            raise unsupported(f"[highlight] of type [{options['type']}]", "use plain")
        if options.get("encoder", "default") != "default":
            raise unsupported(f"[highlight] with the encoder [{options['encoder']}]", "escape the text yourself")
        for field in self._snapshot.fields.matching(pattern):
            if field.column in ("text", "keyword"):
                self._wanted.append((field, options))

    def mark(self, source: Json) -> dict[str, list[str]]:
        """Return field path -> marked fragments of a document, without fields that have no match."""
        marked = {}
        for field, options in self._wanted:
            texts = [
                values.as_text(value) for path, value in leaves(source) if path == field.source and value is not None
            ]
            if fragments := self._fragments(field, options, texts):
                marked[field.path] = fragments
        return marked

    def _fragments(self, field: Field, options: Json, texts: list[str]) -> list[str]:
        terms = self._looked_for(field, options)
        tags = (options.get("pre_tags", ["<em>"])[0], options.get("post_tags", ["</em>"])[0])
        limit = as_whole(options.get("number_of_fragments", 5), "highlight.number_of_fragments")
        size = as_whole(options.get("fragment_size", 100), "highlight.fragment_size")
        found: list[tuple[int, str]] = []
        for text in texts:
            hits = [token for token in self._tokens(field, text) if token.term in terms]
            spans = [(0, len(text))] if limit == 0 else _spans(text, hits, size)
            for start, end in spans:
                inside = [token for token in hits if start <= token.start and token.end <= end]
                if inside:
                    found.append((len({token.term for token in inside}), _tagged(text, start, end, inside, tags)))
        if not found and texts and options.get("no_match_size"):
            return [texts[0][: int(options["no_match_size"])]]
        if limit:
            best = sorted(range(len(found)), key=lambda at: -found[at][0])[:limit]
            order = best if options.get("order") == "score" else sorted(best)
            return [found[at][1] for at in order]
        return [text for _, text in found]

    def _looked_for(self, field: Field, options: Json) -> set[str]:
        if options.get("require_field_match", True) in (True, "true"):
            return self._terms.get(field.path, set())
        return set().union(*self._terms.values())

    def _tokens(self, field: Field, text: str) -> list[Token]:
        if field.column == "keyword":
            return [Token(text, 0, 0, len(text))]
        return self._snapshot.analyzer(field, searching=False).tokens(text)


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


def _tagged(text: str, start: int, end: int, tokens: list[Token], tags: tuple[Any, Any]) -> str:
    parts = []
    at = start
    for token in tokens:
        parts += [text[at : token.start], tags[0], text[token.start : token.end], tags[1]]
        at = token.end
    return "".join([*parts, text[at:end]]).strip()
