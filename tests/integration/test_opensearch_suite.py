"""OpenSearch's own REST tests, with every search reranked, and on the embedded engine.

`docs/compatibility.md` lists which of them end differently. They are not part of this repository: `../shared/suites`.
"""

import contextlib
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from typing import Any

import opensearchpy
import pytest

from osrerank import connect
from tests import servers
from tests.yaml_suite import Case, Refused, Send, Skipped, cases_of, run, sender, undo

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(1200)]

SUITE = servers.SHARED / "suites" / "opensearch-yaml"
FOLDERS = sorted(folder.name for folder in SUITE.glob("*")) or [
    pytest.param("", marks=pytest.mark.skip(reason="OpenSearch's tests are not here: no folder ../shared/suites"))
]
PAGE = servers.ROOT / "docs" / "compatibility.md"
VERSION = "3.6.0"
SETTLE_S = 20.0
"""Time after which a node has surely made its plugins' own indices, which searches of all indices find, in seconds."""
ALL = 1_000
"""More hits than a test has."""


@cache
def listed(engine: str) -> list[str]:
    """Return the patterns of names of the tests that the page lists for an engine."""
    _, _, table = PAGE.read_text().partition(f"<!-- differs: {engine} -->")
    return re.findall(r"`([^`]+)`", table.partition("<!-- /differs -->")[0])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An OpenSearch of these tests' own, because they delete all of its indices."""
    home = servers.opensearch_home()
    if home is None:
        servers.missing("no OpenSearch of its own: set TEST_OPENSEARCH_HOME")
    assert home is not None
    with servers.start_opensearch(home, tmp_path_factory.mktemp("suite")) as (url, _process):
        yield url


def unranked(response: Any) -> Any:
    """Return a response without what reranking may change, except for which hits it has, and how many."""
    kept_entries = {
        name: value for name, value in response.items() if name not in ("took", "rerank", "_scroll_id", "pit_id")
    }
    if "responses" in kept_entries:
        return {**kept_entries, "responses": [unranked(response) for response in kept_entries["responses"]]}
    if "profile" in kept_entries:
        kept_entries["profile"] = bool(kept_entries["profile"])
    if isinstance(kept_entries.get("hits"), dict):
        hits = {name: value for name, value in kept_entries["hits"].items() if name != "max_score"}
        kept_entries["hits"] = hits | {"hits": sorted(map(_plain, hits.get("hits", ())), key=repr)}
    return kept_entries


def _plain(hit: Any) -> Any:
    """Return a hit without its score and marks."""
    kept_entries = {name: value for name, value in hit.items() if name not in ("_score", "_rerank")}
    if "_explanation" in kept_entries:
        kept_entries["_explanation"] = re.sub(
            "@[0-9a-f]+", "", str(kept_entries["_explanation"])
        )  # the address of an object in Java
    return kept_entries


def reranking(client: opensearchpy.OpenSearch, differences: list[str]) -> Send:
    """Return what sends requests, and each search once more with reranking, and notes where the answers differ."""
    send = sender(client)

    def both(api: str, arguments: dict[str, Any], headers: Any = None) -> Any:
        plain = outcome(send, api, arguments, headers)
        if api in ("search", "msearch"):
            reranked = outcome(send, api, arguments, headers, rerank=True)
            if not same(plain, reranked):
                everything = deeper(send, arguments, headers) if api == "search" else plain
                if not isinstance(everything, dict) or not fits(plain, reranked, everything):
                    differences.append(f"{api} {arguments}: {plain} and {reranked}")
        if isinstance(plain, Refused):
            raise plain
        return plain

    return both


def outcome(send: Send, api: str, arguments: dict[str, Any], headers: Any, **more: Any) -> Any:
    """Return an answer, or the error."""
    try:
        return send(api, arguments, headers, **more)
    except Refused as refused:
        return refused


def same(plain: Any, reranked: Any) -> bool:
    """Return whether a search's answers are the same but for what reranking may change."""
    if isinstance(plain, Refused) or isinstance(reranked, Refused):
        kinds = [type(answer) for answer in (plain, reranked)]
        return kinds == [Refused, Refused] and plain.status == reranked.status
    has_marks = "rerank" in reranked or all(
        "rerank" in response or "error" in response for response in reranked["responses"]
    )
    return has_marks and unranked(plain) == unranked(reranked)


def deeper(send: Send, arguments: dict[str, Any], headers: Any) -> Any:
    """Return the plain answer with all hits."""
    other_arguments = {name: value for name, value in arguments.items() if name not in ("size", "from", "from_")}
    body = {
        name: value for name, value in (other_arguments.pop("body", None) or {}).items() if name not in ("size", "from")
    }
    return outcome(send, "search", {**other_arguments, "body": {**body, "size": ALL}}, headers)


def fits(plain: Any, reranked: Any, everything: Any) -> bool:
    """Return whether a page has as many of the search's hits, and everything else is the same."""
    if isinstance(plain, Refused) or isinstance(reranked, Refused):
        return False
    left, right = unranked(plain), unranked(reranked)
    hits, pool = right.get("hits", {}).pop("hits", []), unranked(everything)["hits"]["hits"]
    count = len(left.get("hits", {}).pop("hits", []))
    return left == right and len(hits) == count and all(hit in pool for hit in hits)


def clean(client: opensearchpy.OpenSearch) -> None:
    """Delete what a test left."""
    client.indices.delete(index="*,.plugins-*")
    for delete in (client.indices.delete_template, client.indices.delete_index_template):
        with contextlib.suppress(opensearchpy.TransportError):  # the embedded engine has none
            delete(name="*")


def compare(failed: dict[str, str], engine: str, folder: str) -> None:
    """Compare the tests that failed in a folder with those that the page lists."""
    expected = {pattern for pattern in listed(engine) if pattern.startswith(f"{folder}/")}
    unlisted = {
        name: failure[:600]
        for name, failure in failed.items()
        if not any(fnmatch(name, test_name) for test_name in expected)
    }
    assert not unlisted
    assert all(any(fnmatch(name, test_name) for name in failed) for test_name in expected), (
        "the page lists tests that pass"
    )


def differences_of(case: Case, url: str) -> list[str]:
    """Run a test with every search plain and reranked, and return where the answers differ."""
    differences: list[str] = []
    with connect(url, timeout=60) as client:
        clean(client)
        send = reranking(client, differences)
        try:
            run(case, send, VERSION)
        except Skipped:
            return []
        except (AssertionError, Refused) as error:
            differences.append(f"plain: {error}")
        undo(case, send)
    return differences


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_reranked_search_differs_from_the_plain_search_only_in_order(folder, server, monkeypatch):
    monkeypatch.setenv("OSRERANK_VECTORS", "file")  # side indices would be written while the test deletes its own
    failed = {}
    for file in sorted((SUITE / folder).glob("*.yml")):
        for case in cases_of(file):
            name, differences = f"{folder}/{file.stem}: {case.name}", differences_of(case, server)
            if differences and not any(fnmatch(name, listed_test) for listed_test in listed("reranked")):
                time.sleep(SETTLE_S)
                differences = differences_of(case, server)
            if differences:
                failed[name] = differences[0]
    compare(failed, "reranked", folder)


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_embedded_engine_answers_as_opensearch_or_names_what_it_refuses(folder, tmp_path):
    failed = {}
    with connect(f"embedded:{tmp_path}") as client:
        for file in sorted((SUITE / folder).glob("*.yml")):
            for case in cases_of(file):
                clean(client)
                try:
                    run(case, sender(client), VERSION)
                except Skipped:
                    continue
                except Refused as refused:
                    if not refused.is_by_name:
                        failed[f"{folder}/{file.stem}: {case.name}"] = f"{refused} {refused.body}"
                except AssertionError as error:
                    failed[f"{folder}/{file.stem}: {case.name}"] = str(error)
    compare(failed, "embedded", folder)
