"""The endpoints of the engine: the function that handles each supported path of OpenSearch's REST API."""

from collections.abc import Callable

from osrerank.embedded import admin, documents
from osrerank.embedded.errors import ApiError, Json, argument_error, parsing_error, reject_unknown_keys
from osrerank.embedded.rest.routing import Response, RestRequest, Router, parse_body, translate_errors
from osrerank.embedded.search import execute, term_vectors

router = Router()
_NO_INDEX = "no*such*index"
"""A pattern that matches no index. It replaces the names in a path if none of their indices exists."""

# The engine


@router.route("GET HEAD", "/")
def _describe_engine(request: RestRequest) -> Response:
    return Response(admin.describe_engine(request.engine))


@router.route("GET", "/_cat/indices", params="format")
def _cat_indices(request: RestRequest) -> Response:
    if request.params.get("format") != "json":
        raise argument_error("[/_cat/indices] needs the parameter [format=json] in the embedded engine")
    return Response(admin.cat_indices(request.engine))


# Searching


@router.route(
    "GET POST",
    "/_search",
    "/{index}/_search",
    params="from size _source _source_includes _source_excludes search_pipeline preference ignore_unavailable"
    " filter_path",
)
def _search(request: RestRequest) -> Response:
    body = execute.search(request.engine, _index_expression(request), request.json(), request.params)
    return Response(body, can_share_body=True)


def _index_expression(request: RestRequest) -> str | None:
    """Return the indices in a request's path, such as "news,logs-*", or None, which means all indices.

    If ``ignore_unavailable`` is set, the names of missing indices are left out.
    """
    if request.index is None or not request.ignores_unavailable:
        return request.index
    return ",".join(request.engine.drop_missing(request.index.split(","))) or _NO_INDEX


@router.route("GET POST", "/_msearch", "/{index}/_msearch")
def _msearch(request: RestRequest) -> Response:
    lines = [line for line in request.body.split("\n") if line.strip()]
    if not lines or len(lines) % 2 or not request.body.endswith("\n"):
        raise argument_error(
            "Validation Failed: an msearch body is pairs of lines, a header and a search, each with a newline"
        )
    header_lines, search_lines = lines[::2], lines[1::2]
    headers = [parse_body(line) for line in header_lines]
    for header in headers:
        reject_unknown_keys("msearch header", header, frozenset({"index"}))
    responses = [_search_once(request, header, body) for header, body in zip(headers, search_lines, strict=True)]
    took_ms = sum(response.get("took", 0) for response in responses)
    return Response({"took": took_ms, "responses": responses}, can_share_body=True)


def _search_once(request: RestRequest, header: Json, body: str) -> Json:
    """Return the response to one search of a multi-search, or the body of its error."""
    try:
        with translate_errors(request.engine, "search"):
            index = header.get("index", request.index)
            expression = ",".join(index) if isinstance(index, list) else index
            response = execute.search(request.engine, expression, parse_body(body), {})
    except ApiError as error:
        return error.response_body()
    return {**response, "status": 200}


@router.route("GET POST", "/_count", "/{index}/_count")
def _count(request: RestRequest) -> Response:
    return Response(execute.count(request.engine, request.index, request.json()))


@router.route("GET POST", "/_analyze", "/{index}/_analyze")
def _analyze(request: RestRequest) -> Response:
    return Response(term_vectors.analyze(request.engine, request.index, request.json()))


@router.route("GET POST", "/_mtermvectors")
def _mtermvectors(request: RestRequest) -> Response:
    return Response(term_vectors.read_term_vectors(request.engine, request.json()))


# Documents


@router.route("POST PUT", "/_bulk", "/{index}/_bulk", params="refresh filter_path")
def _bulk(request: RestRequest) -> Response:
    return Response(documents.bulk(request.engine, request.index, request.body, request.refresh))


@router.route("GET POST", "/_mget", "/{index}/_mget")
def _mget(request: RestRequest) -> Response:
    return Response(documents.mget(request.engine, request.index, request.json()))


@router.route("PUT POST", "/{index}/_doc/{id}", params="refresh")
@router.route("POST", "/{index}/_doc", params="refresh")
def _index(request: RestRequest) -> Response:
    def write(batch: documents.WriteBatch) -> Json:
        return batch.index(str(request.index), request.path_variables.get("id"), request.body)

    return _write_document(request, write)


def _write_document(request: RestRequest, write: Callable[[documents.WriteBatch], Json]) -> Response:
    body = documents.write_one(request.engine, write, request.refresh)
    status = body.pop("status")
    return Response(body, status)


@router.route("DELETE", "/{index}/_doc/{id}", params="refresh")
def _delete(request: RestRequest) -> Response:
    def write(batch: documents.WriteBatch) -> Json:
        return batch.delete(str(request.index), request.path_variables["id"])

    return _write_document(request, write)


@router.route("GET HEAD", "/{index}/_doc/{id}")
def _get(request: RestRequest) -> Response:
    document = documents.get(request.engine, str(request.index), request.path_variables["id"])
    return Response(document, 200 if document["found"] else 404)


# Indices


@router.route("POST GET", "/_refresh", "/{index}/_refresh", params="ignore_unavailable")
def _refresh(request: RestRequest) -> Response:
    names = request.engine.resolve_names(_index_expression(request))
    for name in names:
        request.engine.refresh(request.engine.open_index(name))
    return Response({"_shards": execute.describe_shards(len(names))})


@router.route("POST", "/{index}/_forcemerge", params="max_num_segments")
def _forcemerge(request: RestRequest) -> Response:
    """Only refresh the indices, because tantivy merges segments itself."""
    return _refresh(request)


@router.route("GET", "/_mapping", "/{index}/_mapping", params="ignore_unavailable")
def _get_mapping(request: RestRequest) -> Response:
    names = request.engine.resolve_names(_index_expression(request))
    return Response({name: {"mappings": request.engine.open_index(name).row.mappings} for name in names})


@router.route("PUT POST", "/{index}/_mapping")
def _put_mapping(request: RestRequest) -> Response:
    if not request.body.strip():
        raise parsing_error("request body is required")
    return Response(admin.put_mapping(request.engine, str(request.index), request.json()))


@router.route("PUT", "/{index}/_settings")
def _put_settings(request: RestRequest) -> Response:
    return Response(admin.put_settings(request.engine, str(request.index), request.json()))


@router.route("GET", "/_alias/{name}")
def _get_alias(request: RestRequest) -> Response:
    alias = request.path_variables["name"]
    aliases = admin.describe_alias(request.engine, alias)
    if not aliases:
        return Response({"error": f"alias [{alias}] missing", "status": 404}, 404)
    return Response(aliases)


@router.route("PUT POST", "/{index}/_alias/{name}")
def _put_alias(request: RestRequest) -> Response:
    reject_unknown_keys("alias", request.json(), frozenset())
    action = {"index": str(request.index), "alias": request.path_variables["name"]}
    return Response(admin.change_aliases(request.engine, [{"add": action}]))


@router.route("POST", "/_aliases")
def _aliases(request: RestRequest) -> Response:
    body = request.json()
    reject_unknown_keys("aliases", body, frozenset({"actions"}))
    return Response(admin.change_aliases(request.engine, body.get("actions")))


@router.route("PUT", "/{index}")
def _create_index(request: RestRequest) -> Response:
    body, warnings = admin.create_index(request.engine, str(request.index), request.json())
    return Response(body, warnings=warnings)


@router.route("DELETE", "/{index}", params="ignore_unavailable")
def _delete_index(request: RestRequest) -> Response:
    ignores_missing = request.ignores_unavailable
    return Response(admin.delete_indices(request.engine, str(request.index), ignore_unavailable=ignores_missing))


@router.route("GET HEAD", "/{index}", params="ignore_unavailable expand_wildcards")
def _get_index(request: RestRequest) -> Response:
    wildcards = request.params.get("expand_wildcards")
    if wildcards not in (None, "all"):
        raise argument_error(f"[expand_wildcards] takes [all] in the embedded engine, found [{wildcards}]")
    expression = str(_index_expression(request))
    return Response(admin.describe_indices(request.engine, expression, hidden=wildcards == "all"))
