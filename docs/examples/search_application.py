"""A search application: filters, facets, highlights and pages, reranked.

osrerank demo                                                    # indexes the sample
uvicorn --app-dir docs/examples search_application:app           # and searches it, in an engine of this process
curl 'http://127.0.0.1:8000/search?q=who+discovered+oxygen&topic=Oxygen&page=2'

On a cluster it is the same with ``OSRERANK_URL=https://user:password@localhost:9200`` before both commands.
It needs ``pip install 'osrerank[server]'``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from opensearchpy import TransportError

from osrerank import connect

INDEX, TEXT, FACET = "osrerank-demo", ["title", "text"], "title.keyword"
PAGE_SIZE = 10


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model before the first request; write what searches left to be written after the last one."""
    app.state.client = connect(warm=True)
    yield
    app.state.client.close()


app = FastAPI(title="Search", lifespan=lifespan)


@app.get("/search")
def search(
    q: Annotated[str, Query(min_length=1, max_length=500)],
    topic: Annotated[list[str], Query()] = [],  # noqa: B006 - FastAPI copies it
    page: Annotated[int, Query(ge=1, le=100)] = 1,
) -> dict[str, Any]:
    """Return a page of the hits within the chosen topics, and how many hits each topic has."""
    body = {
        "query": {
            "bool": {
                "must": {"multi_match": {"query": q, "fields": TEXT}},
                "filter": [{"terms": {FACET: topic}}] if topic else [],
            }
        },
        "aggs": {"topics": {"terms": {"field": FACET, "size": 20}}},
        "highlight": {"fields": {"text": {}}},
        "from": (page - 1) * PAGE_SIZE,
        "size": PAGE_SIZE,
    }
    try:
        response = app.state.client.search(index=INDEX, body=body, rerank=True)
    except TransportError as error:
        raise HTTPException(503, "the search engine does not answer as it should; try again") from error
    marks = response["rerank"]
    return {
        "total": response["hits"]["total"],
        "hits": [shown(hit) for hit in response["hits"]["hits"]],
        "topics": {one["key"]: one["doc_count"] for one in response["aggregations"]["topics"]["buckets"]},
        "reranked": marks["applied"],  # true, "partial" or false
        "reason": marks["reason"],  # why not, or why only in part
        "took_ms": response["took"],
    }


def shown(hit: dict[str, Any]) -> dict[str, Any]:
    """Return what a results page shows of a hit: the words that match, or where none do, the text's beginning."""
    source = hit["_source"]
    fragments = hit.get("highlight", {}).get("text") or [source["text"][:150]]
    return {"id": hit["_id"], "title": source["title"], "text": " … ".join(fragments)}


@app.get("/health")
def health() -> dict[str, str]:
    """Say that the model is loaded and the search engine answers; 503 if it does not."""
    if not app.state.client.ping():
        raise HTTPException(503, "the search engine does not answer")
    return {"status": "ok"}
