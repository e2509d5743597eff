"""What the engine does not support is a 400 that names it, and changes nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
from opensearchpy import OpenSearch, RequestError

from osrerank import connect

MAPPINGS = {
    "properties": {
        "text": {"type": "text"},
        "tag": {"type": "keyword"},
        "n": {"type": "long"},
        "seen": {"type": "date"},
    }
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenSearch]:
    """An index of one document, with an alias; no test changes it."""
    with connect(f"embedded:{tmp_path_factory.mktemp('refused')}") as client:
        client.indices.create(index="a", body={"mappings": MAPPINGS})
        client.index(index="a", id="1", body={"text": "a b", "tag": "t", "n": 1}, refresh=True)
        client.indices.put_alias(index="a", name="alias")
        yield client


def refusal(client: OpenSearch, method: str, path: str, body: Any = None, **params: Any) -> str:
    """Return the reason of a request's 400."""
    with pytest.raises(RequestError) as caught:
        client.transport.perform_request(method, path, params=params, body=body)
    assert caught.value.status_code == 400
    return str(caught.value.info["error"]["reason"])


def content(client: OpenSearch) -> Any:
    """Return all that requests may change."""
    return client.indices.get(index="*"), client.search(body={})["hits"]["hits"]


def query(clause: str, body: Any) -> dict[str, Any]:
    return {"query": {clause: body}}


SEARCHES: list[tuple[str, dict[str, Any]]] = [
    *((kind, query("multi_match", {"query": "a", "fields": ["text"], "type": kind}))
      for kind in ("cross_fields", "most_fields", "phrase", "bool_prefix")),
    ("tag", query("terms", {"tag": {"index": "a", "id": "1", "path": "tag"}})),
    ("now-1d", {"query": {"range": {"seen": {"gte": "now-1d"}}}}),
    ("text", query("range", {"text": {"gte": "a"}})),
    ("_id", query("exists", {"field": "_id"})),
    ("_index", query("match", {"_index": "a"})),
    *((name, {"sort": sort}) for name, sort in
      (("text", ["text"]), ("later", [{"n": {"order": "later"}}]), ("_score", [{"_score": "asc"}]),
       ("_script", [{"_script": {}}]), ("tag", ["_doc", "tag"]))),
    ("search_after", {"search_after": [1]}),
    ("search_after", {"sort": ["_doc"], "search_after": ["x"]}),
    ("ext", {"ext": {"other": 1}}),
    ("mine", {"search_pipeline": "mine"}),
    ("y", {"aggs": {"y": {"terms": {"field": "n"}, "aggs": {"z": {"terms": {"field": "n"}}}}}}),
    ("_index", {"aggs": {"x": {"terms": {"field": "_index"}}}}),
    ("query", {"query": None}),
]  # fmt: skip


@pytest.mark.parametrize(("named", "body"), SEARCHES, ids=str)
def test_an_unsupported_search_clause_is_refused_by_name(client: OpenSearch, named: str, body: dict[str, Any]) -> None:
    assert named in refusal(client, "POST", "/a/_search", body)


@pytest.mark.parametrize("name", ["q", "scroll", "nonsense"])
def test_an_unsupported_search_parameter_is_refused_by_name(client: OpenSearch, name: str) -> None:
    assert f"[{name}]" in refusal(client, "POST", "/a/_search", {}, **{name: "1"})


def test_unsupported_values_of_parameters_are_refused_by_name(client: OpenSearch) -> None:
    assert "mine" in refusal(client, "POST", "/a/_search", {}, search_pipeline="mine")
    assert "_foo" in refusal(client, "POST", "/a/_search", {}, preference="_foo")
    assert "maybe" in refusal(client, "POST", "/a/_search", {}, ignore_unavailable="maybe")
    assert "later" in refusal(client, "PUT", "/a/_doc/2", {}, refresh="later")
    assert "-hits" in refusal(client, "POST", "/a/_search", {}, filter_path="-hits")
    assert "open" in refusal(client, "GET", "/a", expand_wildcards="open")


UNKNOWN = [
    ("POST", "/a/_update/1"), ("POST", "/a/_delete_by_query"), ("GET", "/a/_settings"), ("POST", "/_reindex"),
    ("DELETE", "/a/_alias/alias"), ("GET", "/_cat/indices"), ("POST", "/a"), ("DELETE", "/_bulk"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), UNKNOWN)
def test_an_unsupported_route_is_refused_by_name(client: OpenSearch, method: str, path: str) -> None:
    before = content(client)
    assert path in refusal(client, method, path)
    assert content(client) == before


CHANGES: list[tuple[str, str, str, Any, dict[str, Any]]] = [
    ("require_alias", "PUT", "/new/_doc/1", {"x": 1}, {"require_alias": "true"}),
    *((name, "PUT", "/new/_doc/1", {"x": 1}, {name: "1"})
      for name in ("routing", "if_seq_no")),
    ("require_alias", "POST", "/_bulk", '{"index": {"_index": "new", "require_alias": true}}\n{"x": 1}\n', {}),
    ("require_alias", "POST", "/_bulk", '{"index": {"_index": "new"}}\n{"x": 1}\n', {"require_alias": "true"}),
    ("update", "POST", "/_bulk", '{"index": {"_index": "new"}}\n{"y": 1}\n{"update": {"_index": "new"}}\n{"doc": {}}\n',
     {}),
    ("routing", "POST", "/_bulk", '{"create": {"_index": "new"}}\n{"y": 1}\n{"delete": {"_id": "1", "routing": "x"}}\n',
     {}),
    ("newline", "POST", "/_bulk", '{"index": {"_index": "new"}}\n{"x": 1}', {}),
    ("index is missing", "POST", "/_bulk", '{"index": {"_index": "new"}}\n{"x": 1}\n{"index": {}}\n{"x": 1}\n', {}),
    ("id is missing", "POST", "/_bulk", '{"index": {"_index": "new"}}\n{"x": 1}\n{"delete": {"_index": "a"}}\n', {}),
    ("_id", "POST", "/_bulk", '{"index": {"_index": "new", "_id": ["x"]}}\n{"x": 1}\n', {}),
    ("512 bytes", "PUT", f"/new/_doc/{'x' * 513}", {"x": 1}, {}),
    ("aliases", "PUT", "/new", {"aliases": {}}, {}),
    ("wait_for_active_shards", "PUT", "/new", {}, {"wait_for_active_shards": "1"}),
    *((name, "PUT", "/new", {"settings": {"index": {name: 1}}}, {})
      for name in ("knn", "default_pipeline")),
    ("own", "PUT", "/new", {"settings": {"similarity": {"own": {"type": "BM25"}}}}, {}),
    ("DFR", "PUT", "/new", {"settings": {"similarity": {"default": {"type": "DFR"}}}}, {}),
    *((name, "PUT", "/new", {"mappings": {name: {}}}, {})
      for name in ("_source", "runtime")),
    ("strict", "PUT", "/new", {"mappings": {"dynamic": "strict"}}, {}),
    *((kind, "PUT", "/new", {"mappings": {"properties": {"x": {"type": kind}}}}, {})
      for kind in ("nested", "alias")),
    *((name, "PUT", "/new", {"mappings": {"properties": {"x": {"type": "text", name: "y"}}}}, {})
      for name in ("copy_to", "search_analyzer")),
    *((name, "PUT", "/new", {"mappings": {"properties": {"x": {"type": "integer", name: True}}}}, {})
      for name in ("ignore_malformed", "index")),
    ("format", "PUT", "/new", {"mappings": {"properties": {"x": {"type": "date", "format": "MM/yy"}}}}, {}),
    ("[index: false]", "PUT", "/new", {"mappings": {"properties": {"x": {"type": "keyword", "index": False}}}}, {}),
    ("empty", "PUT", "/a/_mapping", {"properties": {"": {"type": "keyword"}}}, {}),
    ("analyzer", "PUT", "/a/_mapping", {"properties": {"text": {"type": "text", "analyzer": "english"}}}, {}),
    ("number_of_shards", "PUT", "/a/_settings", {"index": {"number_of_shards": 2}}, {}),
    ("preserve_existing", "PUT", "/a/_settings", {"index": {"number_of_replicas": 2}}, {"preserve_existing": "true"}),
    ("alias", "DELETE", "/alias", None, {}),
    ("<a-{now/d}>", "DELETE", "/a,<a-{now/d}>", None, {"ignore_unavailable": "true"}),
    ("<a-{now/d}>", "DELETE", "/<a-{now/d}>", None, {}),
    ("expand_wildcards", "DELETE", "/a", None, {"expand_wildcards": "none"}),
    ("allow_no_indices", "DELETE", "/a", None, {"allow_no_indices": "false"}),
    ("refresh", "DELETE", "/a/_doc/1", None, {"refresh": "maybe"}),
    ("if_seq_no", "DELETE", "/a/_doc/1", None, {"if_seq_no": "7"}),
    ("bad_*", "PUT", "/a/_alias/bad_*", None, {}),
    ("alias", "PUT", "/alias/_alias/x", None, {}),
    ("action", "POST", "/_aliases", {"actions": []}, {}),
    ("[x]", "PUT", "/a/_mapping", {"properties": {"x": {}}}, {}),
    ("no settings", "PUT", "/a/_settings", {}, {}),
    ("filter", "PUT", "/a/_alias/x", {"filter": {"match_all": {}}}, {}),
    ("must_exist", "POST", "/_aliases",
     {"actions": [{"remove": {"index": "a", "alias": "x", "must_exist": False}}]}, {}),
    ("remove_index", "POST", "/_aliases", {"actions": [{"remove_index": {"index": "a"}}]}, {}),
    ("alias*", "POST", "/_aliases", {"actions": [{"remove": {"index": "a", "alias": "alias*"}}]}, {}),
    ("aliases", "POST", "/_aliases", {"actions": [{"add": {"index": "a", "aliases": ["x"]}}]}, {}),
    ("is_write_index", "POST", "/_aliases",
     {"actions": [{"add": {"index": "a", "alias": "x"}}, {"add": {"index": "a", "alias": "y", "is_write_index": 1}}]},
     {}),
    *((repr(key)[1:-1], "PUT", "/a/_doc/2", {key: "x"}, {}) for key in ("_id", "_source", "", ".", "a..b")),
    ("slashed", "PUT", "/a/_doc/2", {"slashed": "2020/01/02"}, {}),
    ("text", "PUT", "/a/_doc/2", {"new": 1, "text": {"inner": 1}}, {}),
    ("mixed", "PUT", "/a/_doc/2", {"new": 1, "mixed": [1, "x"]}, {}),
    ("n", "PUT", "/a/_doc/2", {"new": 1, "n": 10**19}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("named", "method", "path", "body", "params"), CHANGES, ids=str)
def test_a_refused_write_changes_nothing(
    client: OpenSearch, named: str, method: str, path: str, body: Any, params: dict[str, Any]
) -> None:
    before = content(client)
    assert named in refusal(client, method, path, body, **params)
    assert content(client) == before


def test_index_patterns_delete_no_index_by_an_alias(client: OpenSearch) -> None:
    client.indices.delete(index="alia*")
    client.indices.delete(index="alias,missing", ignore_unavailable=True)
    client.indices.delete(index="*,-a")
    assert client.indices.exists(index="a")


@pytest.mark.parametrize(
    ("named", "path", "body"),
    [
        ("index is missing for doc 1", "/_mget", {"docs": [{"_index": "a", "_id": "1"}, {"_id": "2"}]}),
        ("id is missing for doc 0", "/_mget", {"docs": [{"_index": "a"}]}),
        ("_source", "/_mget", {"docs": [{"_index": "a", "_id": "1", "_source": False}]}),
        ("realtime", "/a/_mget?realtime=false", {"ids": ["1"]}),
        ("size", "/a/_count", {"size": 1}),
        ("positions", "/_mtermvectors", {"docs": [{"_index": "a", "_id": "1", "fields": ["text"]}]}),
        ("search_type", "/_msearch", '{"index": "a", "search_type": "x"}\n{}\n'),
        ("analyzer", "/_analyze", {"analyzer": "english", "text": "x"}),
        ("letter", "/_analyze", {"tokenizer": "letter", "text": "x"}),
        ("asciifolding", "/_analyze", {"tokenizer": "standard", "filter": ["asciifolding"], "text": "x"}),
        ("tag", "/a/_analyze", {"field": "tag", "text": "x"}),
        ("text", "/a/_analyze", {"field": "text", "text": ["x", "y"]}),
        ("a_*", "/_alias/a_*", None),
        ("realtime", "/a/_doc/1?realtime=false", None),
    ],
)
def test_an_unsupported_read_request_is_refused_by_name(client: OpenSearch, named: str, path: str, body: Any) -> None:
    route, _, params = path.partition("?")
    method = "GET" if body is None else "POST"
    parameters = dict([params.split("=")]) if params else {}
    assert named in refusal(client, method, route, body, **parameters)


def test_extensions_of_plugins_in_a_search_have_no_effect(client: OpenSearch) -> None:
    ext = {"rerank": {"query_context": {"query_text": "x"}}, "ubi": {"query_id": "q"}}
    assert client.search(index="a", body={"ext": ext}, search_pipeline="_none")["hits"]["total"]["value"] == 1
