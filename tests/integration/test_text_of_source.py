"""The model reads the same text of a document, whatever the caller asks to see of it: drawn documents and fields."""

import random
from typing import Any

from osrerank import connect
from osrerank.testing import FunctionScorer

INDEX = "text-of-source"
SHOWN = [True, False, ["x"], {"excludes": ["t", "k", "flat", "o"]}, "o*"]
FIELDS = ["t", "k", "short", "filled", "flat.a", "flat", "o.t", "n", "d", "day", "flag", "parts.t", "t.raw"]
PROPERTIES = {
    "t": {"type": "text", "fields": {"raw": {"type": "keyword", "normalizer": "low"}}},
    "k": {"type": "keyword", "normalizer": "low"},
    "short": {"type": "keyword", "ignore_above": 5},
    "filled": {"type": "keyword", "null_value": "NONE"},
    "flat": {"type": "flat_object"},
    "o": {"properties": {"t": {"type": "text"}}},
    "parts": {"type": "nested", "properties": {"t": {"type": "text"}}},
    "n": {"type": "long"},
    "d": {"type": "double"},
    "day": {"type": "date"},
    "flag": {"type": "boolean"},
    "x": {"type": "text"},
}
SETTINGS = {"analysis": {"normalizer": {"low": {"type": "custom", "filter": ["lowercase"]}}}}


def drawn(draw: random.Random, *, depth: int = 2) -> Any:
    """A value of a text field: a text, a number, a boolean, a null, or a list of them."""
    kind = draw.randrange(8 if depth else 6)
    if kind > 5:
        return [drawn(draw, depth=depth - 1) for _ in range(draw.randrange(4))]
    return [None, draw.random() < 0.5, draw.randrange(100), draw.randrange(1, 400) / 4, "Low Salt", "a B " * 4][kind]


def test_the_text_is_the_same_whatever_is_shown_of_the_source(opensearch_url: str) -> None:
    draw, read = random.Random(8), list[str]()
    client = connect(opensearch_url, scorer=FunctionScorer(lambda _query, text: read.append(text) or 1.0))
    client.indices.delete(index=INDEX, ignore_unavailable=True)
    mapping = {"settings": SETTINGS, "mappings": {"properties": PROPERTIES}}
    client.indices.create(index=INDEX, body=mapping)
    lines: list[Any] = []
    for number in range(40):
        document = {name: drawn(draw) for name in ("t", "k", "short", "filled")}
        document |= {"flat": {"a": draw.choice(["Low Salt", ["x Y", "Z"]])}, "x": f"x{number}"}
        document |= {"o": [{"t": drawn(draw)} for _ in range(3)], "parts": [{"t": "One"}, {"t": "Two"}]}
        document |= {"n": draw.choice([1, "7", None]), "d": draw.choice([1.5, 2]), "flag": draw.random() < 0.5}
        document |= {"day": draw.choice(["2024-01-01", 1577836800000])}
        lines += [{"index": {"_index": INDEX, "_id": str(number)}}, document]
    assert not client.bulk(body=lines, refresh=True)["errors"]
    for _ in range(40):
        rerank = {"query": "x", "fields": [*draw.sample(FIELDS, draw.randint(1, 3)), "x"], "deadline_ms": None}
        texts = []
        for shown in SHOWN:
            read.clear()
            body = {"query": {"match_all": {}}, "_source": shown, "size": 40}
            assert client.search(index=INDEX, body=body, rerank=rerank)["rerank"]["applied"] is True
            texts.append(sorted(read))
        assert all(text == texts[0] for text in texts), rerank
    client.indices.delete(index=INDEX)
    client.close()
