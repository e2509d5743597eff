"""Search for documents by their whole names, with and without reranking, and count how often the document is first.

nice -n 10 python tools/bench/known_items.py packages --url embedded:./known
nice -n 10 python tools/bench/known_items.py squad train-v1.1.json dev-v1.1.json --url http://localhost:9200
nice -n 10 python tools/bench/known_items.py cacm cacm.tar.gz --url http://localhost:9200

A second run uses the index and the vectors of the first. Vectors in a file are in OSRERANK_VECTORS_FOLDER. ``packages``
are those of ``apt-cache dumpavail``, with the first lines of their descriptions.
"""

import argparse
import json
import random
import re
import statistics
import subprocess
import tarfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from opensearchpy.helpers import bulk

from osrerank import Client, connect
from osrerank.indexing.build import build_on_screen

SEED = 83
MAX_NAMES = 200
MAX_PACKAGES = 15_000
PARAGRAPHS_PER_ARTICLE = 10
DEPTH = 100
TEXT = {"type": "text"}
NAME = {"type": "keyword", "fields": {"text": {"type": "text"}}}


class Collection(NamedTuple):
    """Documents with names.

    Attributes:
        name_field: the field with the name.
        mapping: field -> its mapping.
        documents: the documents' ``_source``, in the order of their ids.
        max_names: the maximum number of names to search for.
    """

    name_field: str
    mapping: Mapping[str, Any]
    documents: Sequence[Mapping[str, str]]
    max_names: int = MAX_NAMES


def packages(_files: Sequence[Path]) -> Collection:
    """Return a sample of the packages that apt lists."""
    text = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    matches = re.findall(r"^Package: (\S+)$.*?^Description(?:-en)?: (.+?)$", text, re.MULTILINE | re.DOTALL)
    documents = {name: {"name": name, "summary": summary} for name, summary in matches}
    names = random.Random(SEED).sample(sorted(documents), min(MAX_PACKAGES, len(documents)))
    return Collection("name", {"name": NAME, "summary": TEXT}, [documents[name] for name in names])


def squad(files: Sequence[Path]) -> Collection:
    """Return the first paragraphs of SQuAD's articles; the paragraphs of an article have the same name."""
    articles = [article for file in files for article in json.loads(file.read_text("utf-8"))["data"]]
    documents = [
        {"title": article["title"].replace("_", " "), "text": paragraph["context"]}
        for article in articles
        for paragraph in article["paragraphs"][:PARAGRAPHS_PER_ARTICLE]
    ]
    return Collection("title", {"title": TEXT, "text": TEXT}, documents)


def cacm(files: Sequence[Path]) -> Collection:
    """Return CACM's titles and abstracts; the text of a document without an abstract is empty."""
    documents = []
    with tarfile.open(files[0]) as archive:
        for member in sorted(archive.getmembers(), key=lambda member: member.name):
            content = archive.extractfile(member)
            if content is None:
                continue
            text = re.sub(r"<[^>]*>", "", content.read().decode("latin-1"))
            title, *blocks = (" ".join(block.split()) for block in re.split(r"\n\s*\n", text.strip()))
            has_abstract = bool(blocks) and not blocks[0].startswith("CACM ")
            documents.append({"title": title, "text": blocks[0] if has_abstract else ""})
    return Collection("title", {"title": TEXT, "text": TEXT}, documents, max_names=100)


COLLECTIONS = {read.__name__: read for read in (packages, squad, cacm)}


def index(client: Client, name: str, collection: Collection) -> None:
    """Index the documents and build their vectors, unless an earlier run did."""
    if not client.indices.exists(index=name):
        body = {"settings": {"number_of_shards": 1}, "mappings": {"properties": dict(collection.mapping)}}
        client.indices.create(index=name, body=body)
        bulk(client, ({"_index": name, "_id": f"{id_}", **source} for id_, source in enumerate(collection.documents)))
        client.indices.refresh(index=name)
    print(f"{name}: {build_on_screen(client, name)}", flush=True)


def search_names(
    client: Client, index: str, collection: Collection, names: Iterable[str], rerank: Any
) -> list[tuple[int, float]]:
    """Search for each name; return the rank of the first hit with this name, 0 if there is none, and the time in ms."""
    results = []
    for name in names:
        start_s = time.perf_counter()
        response = client.search(name, index=index, rerank=rerank, size=DEPTH)
        took_ms = (time.perf_counter() - start_s) * 1000
        hit_names = [hit["_source"][collection.name_field] for hit in response["hits"]["hits"]]
        results.append((hit_names.index(name) + 1 if name in hit_names else 0, took_ms))
    return results


def main() -> None:
    """Index, search and count."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=COLLECTIONS)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--list", action="store_true", help="list the names that reranking moves from the first rank")
    options = parser.parse_args()
    collection = COLLECTIONS[options.collection](options.files)
    all_names = sorted({source[collection.name_field] for source in collection.documents})
    names = random.Random(SEED).sample(all_names, min(collection.max_names, len(all_names)))
    with connect(options.url) as client:
        index_name = f"known-{options.collection}"
        index(client, index_name, collection)
        plain = search_names(client, index_name, collection, names, rerank=False)
        reranked = search_names(client, index_name, collection, names, rerank={"depth": DEPTH, "deadline_ms": None})
        fields = client.fields_of(index_name).model_fields
        print(f"{len(collection.documents):,} documents, {len(names)} names; fields {fields}")
        for label, results in (("plain", plain), ("reranked", reranked)):
            first, first_ten = (sum(0 < rank <= limit for rank, _ in results) for limit in (1, 10))
            median_ms = statistics.median(took_ms for _, took_ms in results)
            print(f"{label:9} first {first}, in the first ten {first_ten}, median {median_ms:.1f} ms")
        if options.list:
            for name, (plain_rank, _), (reranked_rank, _) in zip(names, plain, reranked, strict=True):
                if reranked_rank != 1:
                    print(f"{name!r}: plain {plain_rank}, reranked {reranked_rank}")


if __name__ == "__main__":
    main()
