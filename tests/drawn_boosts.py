"""Draw queries with boosts, for an index of articles of a shop: each with the clause that is its text part."""

import random
from typing import Any

WORDS = ["red", "blue", "green", "lamp", "chair", "table", "sofa", "desk", "wood", "steel"]
MAPPINGS = {
    "properties": {
        "title": {"type": "text"},
        "items": {"type": "nested", "properties": {"name": {"type": "text"}}},
        "shop": {"type": "keyword"},
        "stock": {"type": "integer"},
        "sold": {"type": "float"},
        "added": {"type": "date"},
        "rank": {"type": "rank_feature"},
    }
}
Clause = dict[str, Any]


def goods(count: int) -> dict[str, Clause]:
    """Return documents by id; no two have the same title."""
    draw = random.Random(1)
    return {
        str(number): {
            "title": " ".join([*draw.choices(WORDS, k=draw.randint(2, 9)), f"n{number}"]),
            "items": [{"name": draw.choice(WORDS)} for _ in range(2)],
            "shop": draw.choice("abc"),
            "stock": draw.randint(0, 50),
            "sold": draw.random() * 5,
            "added": f"2025-{draw.randint(1, 12):02}-{draw.randint(1, 28):02}",
            "rank": draw.random() * 10 + 0.1,
        }
        for number in range(count)
    }


def drawn(draw: random.Random) -> tuple[Clause, Clause]:
    """Return the body of a search with boosts, and the clause that is its text part."""
    text = _text(draw)
    query = _around(draw, text)
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        query = _around(draw, query)
    body: Clause = {"query": query}
    if draw.random() < 0.03:
        body["indices_boost"] = [{"goods*": 2.0}]
    elif draw.random() < 0.03:
        body["rescore"] = {"window_size": 50, "query": {"rescore_query": {"match": {"title": "blue"}}}}
    if draw.random() < 0.1:
        body["min_score"] = 0.2
    return body, text


def _text(draw: random.Random) -> Clause:
    words = " ".join(draw.sample(WORDS, draw.randint(1, 3)))
    match: Clause = {"match": {"title": {"query": words, "boost": draw.choice((1, 1, 2.5))}}}
    two_clauses = {"bool": {"should": [match, {"match_phrase": {"title": words}}]}}
    several = {"multi_match": {"query": words, "fields": ["title^2", "items.name"]}}
    best = {"dis_max": {"queries": [match, {"match": {"title": {"query": words, "operator": "and"}}}]}}
    return draw.choice((match, match, two_clauses, several, best))


def _around(draw: random.Random, query: Clause) -> Clause:
    """Return a query with one more boost."""
    kind = draw.choices(("function_score", "bool", "boosting", "tangle"), (12, 4, 2, 1))[0]
    if kind == "function_score":
        return {"function_score": _function_score(draw, query)}
    if kind == "bool":
        clauses = [_clause(draw) for _ in range(draw.randint(1, 3))]
        clause = draw.choice(("must", "should"))
        content: Clause = {"boost": draw.choice((1, 1, 0.7, 3))}
        if clause == "must":
            content |= {"must": [query], "should": clauses, "filter": [{"range": {"stock": {"gte": 1}}}]}
        else:
            content |= {"should": [*clauses, query], "minimum_should_match": draw.choice((0, 1, 2))}
        return {"bool": content}
    if kind == "boosting":
        return {"boosting": {"positive": query, "negative": {"term": {"shop": "a"}}, "negative_boost": 0.4}}
    weighted = {"function_score": {"query": {"match": {"title": "sofa"}}, "weight": 2}}
    return draw.choice((
        {"dis_max": {"queries": [query, weighted], "tie_breaker": 0.3}},
        {"bool": {"should": [query, weighted]}},
        {"script_score": {"query": query, "script": {"source": "_score * 2"}}},
    ))  # fmt: skip


def _clause(draw: random.Random) -> Clause:
    return draw.choice((
        {"rank_feature": {"field": "rank", "boost": draw.choice((1, 2))}},
        {"distance_feature": {"field": "added", "origin": "2025-12-31", "pivot": "60d"}},
        {"constant_score": {"filter": {"range": {"stock": {"gte": 10}}}, "boost": 1.3}},
        {"term": {"shop": {"value": "b", "boost": 0.8}}},
        {"terms": {"shop": ["a", "c"]}},
        {"function_score": {"query": {"term": {"shop": "c"}}, "functions": [_function(draw)]}},
    ))  # fmt: skip


def _function_score(draw: random.Random, query: Clause) -> Clause:
    content: Clause = {"query": query}
    if draw.random() < 0.2:
        content |= _function(draw)
    else:
        content["functions"] = [_with_filter(draw, _function(draw)) for _ in range(draw.randint(1, 3))]
    for name, values in {
        "boost_mode": ("multiply", "sum", "avg", "max", "min", "replace"),
        "score_mode": ("multiply", "sum", "avg", "first", "max", "min"),
        "max_boost": (0.9, 2.0, 5.0),
        "boost": (0.5, 3.0),
        "min_score": (0.3,),
    }.items():
        if draw.random() < (0.8 if "mode" in name else 0.15):
            content[name] = draw.choice(values)
    return content


def _function(draw: random.Random) -> Clause:
    factor = {
        "field": "sold",
        "modifier": draw.choice(("none", "log1p", "sqrt", "square")),
        "factor": draw.random() * 3,
    }
    decay = {"added": {"origin": "2025-12-31", "scale": f"{draw.randint(20, 200)}d", "decay": 0.4}}
    return draw.choice((
        {"field_value_factor": factor},
        {"field_value_factor": factor},
        {draw.choice(("gauss", "exp", "linear")): decay},
        {draw.choice(("gauss", "exp", "linear")): decay},
        {"weight": round(draw.random() * 4, 2)},
        {"script_score": {"script": {"source": "Math.log(2 + doc['stock'].value)"}}},
        {"random_score": {"seed": 7, "field": "stock"}},
        draw.choice(({"random_score": {}}, {"script_score": {"script": {"source": "_score * doc['sold'].value"}}})),
    ))  # fmt: skip


def _with_filter(draw: random.Random, function: Clause) -> Clause:
    if draw.random() < 0.4:
        function = {**function, "weight": function.get("weight", draw.choice((1, 0.3, 2)))}
    if draw.random() < 0.5:
        function = {**function, "filter": draw.choice(({"term": {"shop": "a"}}, {"range": {"stock": {"gte": 25}}}))}
    return function
