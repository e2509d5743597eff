"""The endpoints of OpenSearch's REST paths."""

from collections.abc import Mapping

from osrerank.embedded import admin, documents
from osrerank.embedded.errors import Fault, Json, illegal
from osrerank.embedded.mapping.source import source_filter
from osrerank.embedded.rest.routing import Response, RestRequest, Router, understood
from osrerank.embedded.search import execute, term_vectors

router = Router()
_SOURCE = frozenset({"_source", "_source_includes", "_source_excludes"})
_SEARCH = _SOURCE | frozenset(
    {"from", "size", "sort", "track_total_hits", "track_scores", "search_pipeline", "search_type", "request_cache",
     "allow_partial_search_results", "batched_reduce_size", "ccs_minimize_roundtrips",
     "max_concurrent_shard_requests", "pre_filter_shard_size", "typed_keys", "explain", "version",
     "seq_no_primary_term", "rest_total_hits_as_int", "phase_took"}
)  # fmt: skip
_CAT = frozenset({"v", "format", "h", "s", "bytes", "help"})

# The engine


@router.route("GET", "/")
def _information(request: RestRequest) -> Response:
    return Response(admin.information(request.engine))


@router.route("GET", "/_cluster/health", "/_cluster/health/{index}", params=frozenset({"wait_for_status", "level"}))
def _health(request: RestRequest) -> Response:
    return Response(admin.health(request.engine))


@router.route("GET", "/_cat/health", params=_CAT)
def _cat_health(request: RestRequest) -> Response:
    body = admin.health(request.engine)
    row = {
        "cluster": body["cluster_name"],
        "status": body["status"],
        "node.total": "1",
        "shards": str(body["active_shards"]),
    }
    return _cat(request, [row])


@router.route("GET", "/_cat/indices", "/_cat/indices/{index}", params=_CAT)
def _cat_indices(request: RestRequest) -> Response:
    return _cat(request, admin.cat_indices(request.engine, request.index))


@router.route("GET", "/_cat/count", "/_cat/count/{index}", params=_CAT)
def _cat_count(request: RestRequest) -> Response:
    number = execute.count(request.engine, request.index, {})["count"]
    return _cat(request, [{"epoch": "0", "timestamp": "00:00:00", "count": str(number)}])


def _cat(request: RestRequest, rows: list[Json]) -> Response:
    if "h" in request.params:
        wanted = request.params["h"].split(",")
        rows = [{key: row[key] for key in wanted if key in row} for row in rows]
    if request.params.get("format", "text") == "json":
        return Response(rows)
    return Response(admin.table(rows, header=request.flag("v")))


# Searching; these paths come before those of indices, whose names cannot begin with _


@router.route("GET POST", "/_search", "/{index}/_search", params=_SEARCH)
def _search(request: RestRequest) -> Response:
    _check_search_params(request.params)
    found = execute.search(request.engine, _existing(request), request.json(), request.params)
    if request.flag("rest_total_hits_as_int") and "total" in found["hits"]:
        found["hits"]["total"] = found["hits"]["total"]["value"]
    return Response(found, is_own=True)


def _check_search_params(params: Mapping[str, str]) -> None:
    execute.check_pipeline(params.get("search_pipeline", "_none"))
    if params.get("search_type", "query_then_fetch") not in ("query_then_fetch", "dfs_query_then_fetch"):
        raise illegal(f"No search type for [{params['search_type']}]")


def _existing(request: RestRequest) -> str | None:
    """Return the index expression, without unknown names if ``ignore_unavailable`` is set."""
    if request.index is None or not request.flag("ignore_unavailable"):
        return request.index
    known = {**request.engine.store.indices(), **request.engine.store.aliases()}
    kept = [part for part in request.index.split(",") if part in known or "*" in part or part == "_all"]
    return ",".join(kept) or "no*such*index"


@router.route("GET POST", "/_msearch", "/{index}/_msearch", params=_SEARCH | {"max_concurrent_searches"})
def _msearch(request: RestRequest) -> Response:
    lines = [line for line in request.body.split("\n") if line.strip()]
    if not lines or len(lines) % 2:
        raise illegal("Validation Failed: an msearch body is pairs of lines, a header and a search")
    answers = [_one_search(request, head, body) for head, body in zip(lines[::2], lines[1::2], strict=True)]
    return Response({"took": sum(one.get("took", 0) for one in answers), "responses": answers}, is_own=True)


def _one_search(request: RestRequest, head: str, body: str) -> Json:
    try:
        with understood(request.engine, "search"):
            header = RestRequest(request.engine, "POST", {}, {}, head).json()
            index = header.pop("index", request.index)
            _check_search_params(header)
            expression = ",".join(index) if isinstance(index, list) else index
            asked = RestRequest(request.engine, "POST", {}, {}, body).json()
            found = execute.search(request.engine, expression, asked, request.params)
    except Fault as fault:
        return fault.body()
    return {**found, "status": 200}


@router.route("GET POST", "/_count", "/{index}/_count")
def _count(request: RestRequest) -> Response:
    return Response(execute.count(request.engine, _existing(request), request.json()))


@router.route("GET POST", "/_analyze", "/{index}/_analyze")
def _analyze(request: RestRequest) -> Response:
    return Response(term_vectors.analyze(request.engine, request.index, request.json()))


_VECTORS = frozenset({"fields", "term_statistics", "field_statistics", "positions", "offsets", "payloads", "realtime"})


@router.route("GET POST", "/{index}/_termvectors/{id}", params=_VECTORS)
def _termvectors(request: RestRequest) -> Response:
    body = request.json()
    fields = request.params["fields"].split(",") if "fields" in request.params else body.get("fields")
    statistics = request.flag("term_statistics") or bool(body.get("term_statistics"))
    return Response(
        term_vectors.term_vectors(request.engine, str(request.index), request.path["id"], fields, statistics=statistics)
    )


@router.route("GET POST", "/_mtermvectors", "/{index}/_mtermvectors", params=_VECTORS | {"ids"})
def _mtermvectors(request: RestRequest) -> Response:
    body = request.json()
    if "ids" in request.params:
        body = {"ids": request.params["ids"].split(","), **body}
    fields = request.params["fields"].split(",") if "fields" in request.params else None
    statistics = request.flag("term_statistics")
    return Response(term_vectors.many_term_vectors(request.engine, request.index, body, fields, statistics=statistics))


# Documents

_WRITE = frozenset({"refresh", "op_type", "require_alias"})


@router.route("POST PUT", "/_bulk", "/{index}/_bulk", params=_WRITE)
def _bulk(request: RestRequest) -> Response:
    return Response(documents.bulk(request.engine, request.index, request.body, request.refresh))


@router.route("GET POST", "/_mget", "/{index}/_mget", params=_SOURCE | {"realtime", "refresh"})
def _mget(request: RestRequest) -> Response:
    return Response(documents.mget(request.engine, request.index, request.json(), dict(request.params)))


@router.route("PUT POST", "/{index}/_doc/{id}", "/{index}/_doc", params=_WRITE)
def _index(request: RestRequest) -> Response:
    return _write(request, create=request.params.get("op_type") == "create")


@router.route("PUT POST", "/{index}/_create/{id}", params=_WRITE)
def _create(request: RestRequest) -> Response:
    return _write(request, create=True)


def _write(request: RestRequest, *, create: bool) -> Response:
    def write(batch: documents.WriteBatch) -> Json:
        return batch.index(str(request.index), request.path.get("id"), request.body, create=create)

    return _status(documents.write_one(request.engine, write, request.refresh))


def _status(body: Json) -> Response:
    return Response({key: value for key, value in body.items() if key != "status"}, body["status"])


@router.route("DELETE", "/{index}/_doc/{id}", params=_WRITE)
def _delete(request: RestRequest) -> Response:
    def write(batch: documents.WriteBatch) -> Json:
        return batch.delete(str(request.index), request.path["id"])

    return _status(documents.write_one(request.engine, write, request.refresh))


@router.route("POST", "/{index}/_update/{id}", params=_WRITE | {"retry_on_conflict"})
def _update(request: RestRequest) -> Response:
    def write(batch: documents.WriteBatch) -> Json:
        return batch.update(str(request.index), request.path["id"], request.json())

    return _status(documents.write_one(request.engine, write, request.refresh))


@router.route("GET", "/{index}/_doc/{id}", params=_SOURCE | {"realtime", "refresh"})
def _get(request: RestRequest) -> Response:
    wanted = source_filter(None, request.params)
    found = documents.get(request.engine, str(request.index), request.path["id"], wanted)
    return Response(found, 200 if found["found"] else 404)


@router.route("GET", "/{index}/_source/{id}", params=_SOURCE | {"realtime", "refresh"})
def _get_source(request: RestRequest) -> Response:
    found = documents.get(request.engine, str(request.index), request.path["id"], source_filter(None, request.params))
    if not found["found"]:
        raise Fault(404, "resource_not_found_exception", f"Document not found [{request.index}]/[{request.path['id']}]")
    return Response(found["_source"])


# Indices


@router.route(
    "POST GET",
    "/_refresh",
    "/{index}/_refresh",
    "/_flush",
    "/{index}/_flush",
    params=frozenset({"force", "wait_if_ongoing"}),
)
def _refresh(request: RestRequest) -> Response:
    names = request.engine.names(_existing(request))
    for name in names:
        request.engine.refresh(request.engine.live(name))
    return Response({"_shards": execute.shards(len(names))})


@router.route(
    "POST",
    "/_forcemerge",
    "/{index}/_forcemerge",
    params=frozenset({"max_num_segments", "flush", "only_expunge_deletes"}),
)
def _forcemerge(request: RestRequest) -> Response:
    return _refresh(request)


@router.route("GET", "/_stats", "/{index}/_stats", "/_stats/{metric}", "/{index}/_stats/{metric}")
def _stats(request: RestRequest) -> Response:
    return Response(admin.stats(request.engine, request.index))


@router.route("GET", "/_mapping", "/{index}/_mapping")
def _get_mapping(request: RestRequest) -> Response:
    names = request.engine.names(request.index)
    return Response({name: {"mappings": request.engine.live(name).row.mappings} for name in names})


@router.route("PUT POST", "/{index}/_mapping", params=frozenset({"write_index_only"}))
def _put_mapping(request: RestRequest) -> Response:
    for name in request.engine.names(request.index):
        request.engine.change(request.engine.live(name), mappings=request.json())
    return Response({"acknowledged": True})


@router.route("GET", "/_settings", "/{index}/_settings", params=frozenset({"flat_settings", "include_defaults"}))
def _get_settings(request: RestRequest) -> Response:
    rows = [request.engine.live(name).row for name in request.engine.names(request.index)]
    return Response({row.name: {"settings": admin.shown_settings(row)} for row in rows})


@router.route("PUT", "/_settings", "/{index}/_settings", params=frozenset({"preserve_existing", "flat_settings"}))
def _put_settings(request: RestRequest) -> Response:
    body, warnings = admin.put_settings(request.engine, request.index or "_all", request.json())
    return Response(body, warnings=warnings)


@router.route("GET", "/_alias", "/_alias/{name}", "/{index}/_alias", "/{index}/_alias/{name}")
def _get_alias(request: RestRequest) -> Response:
    return Response(admin.get_aliases(request.engine, request.index, request.path.get("name")))


@router.route("PUT POST", "/{index}/_alias/{name}", "/{index}/_aliases/{name}")
def _put_alias(request: RestRequest) -> Response:
    action = {"index": str(request.index), "alias": request.path["name"], **request.json()}
    return Response(admin.change_aliases(request.engine, [{"add": action}]))


@router.route("DELETE", "/{index}/_alias/{name}", "/{index}/_aliases/{name}")
def _delete_alias(request: RestRequest) -> Response:
    action = {"index": str(request.index), "alias": request.path["name"]}
    return Response(admin.change_aliases(request.engine, [{"remove": action}]))


@router.route("POST", "/_aliases")
def _aliases(request: RestRequest) -> Response:
    return Response(admin.change_aliases(request.engine, request.json().get("actions", [])))


@router.route("PUT", "/{index}")
def _create_index(request: RestRequest) -> Response:
    body, warnings = admin.create_index(request.engine, str(request.index), request.json())
    return Response(body, warnings=warnings)


@router.route("DELETE", "/{index}")
def _delete_index(request: RestRequest) -> Response:
    unavailable = request.flag("ignore_unavailable")
    return Response(admin.delete_indices(request.engine, str(request.index), ignore_unavailable=unavailable))


@router.route("GET", "/{index}", params=frozenset({"flat_settings", "include_defaults"}))
def _get_index(request: RestRequest) -> Response:
    return Response(admin.describe(request.engine, str(request.index)))
