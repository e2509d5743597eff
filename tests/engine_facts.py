"""What differs between the versions and distributions of OpenSearch that the integration tests may run on.

A test that needs a fact has the marker ``needs``; a fixture calls the functions here. What is lacking is named by the
skip.
"""

from typing import Any

import pytest
from opensearchpy import OpenSearch

FIRST, LAST = (0, 0), (999, 0)
FACTS = {
    "a search pipeline named in a body": ((2, 18), LAST),
    "an error for a size of -1": ((2, 10), LAST),
    "BM25 without the factor k1 + 1": ((3, 0), LAST),
    "derived fields": ((2, 15), LAST),
    "a field both in includes and in excludes": (FIRST, (3, 7)),
}
"""Fact -> the first and the last minor version in which it holds; tried with 2.9, 2.17, 2.19, 3.6, 3.8 and 3.9."""


def needs(client: OpenSearch, *facts: str) -> None:
    """Skip the test unless all facts hold for an engine."""
    for fact in facts:
        if not holds(client, fact):
            pytest.skip(f"OpenSearch {_number(client)} does not have {fact}")


def holds(client: OpenSearch, fact: str) -> bool:
    """Return whether a fact holds for an engine."""
    first, last = FACTS[fact]
    major, minor, *_ = _number(client).split(".")
    return first <= (int(major), int(minor)) <= last


def needs_plugins(client: OpenSearch, *names: str) -> None:
    """Skip the test unless the engine has all plugins."""
    plugins = {plugin["component"] for plugin in client.cat.plugins(format="json")}
    _skip_without("plugin", names, plugins)


def needs_processors(client: OpenSearch, *names: str) -> None:
    """Skip the test unless the engine has all processors of search pipelines."""
    answer: Any = client.transport.perform_request("GET", "/_nodes/search_pipelines")
    kinds = [kind for node in answer["nodes"].values() for kind in node["search_pipelines"].values()]
    _skip_without("search pipeline processor", names, {letter["type"] for kind in kinds for letter in kind})


def _skip_without(kind: str, names: tuple[str, ...], found: set[str]) -> None:
    if lacking := [name for name in names if name not in found]:
        pytest.skip(f"this OpenSearch lacks the {kind} {', '.join(lacking)}")


def _number(client: OpenSearch) -> str:
    return str(client.info()["version"]["number"])
