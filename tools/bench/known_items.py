"""Search for documents by their whole names, plain and reranked, and count how often the name comes first.

nice -n 10 python tools/bench/known_items.py packages --url embedded:./known
nice -n 10 python tools/bench/known_items.py squad train-v1.1.json dev-v1.1.json --url http://localhost:9200
nice -n 10 python tools/bench/known_items.py cacm cacm.tar.gz --url http://localhost:9200

The documents are indexed once, and their vectors built once (`osrerank vectors build`), into OSRERANK_VECTORS_FOLDER if
the vectors are in a file. ``packages`` are those that ``apt-cache dumpavail`` lists, with the first lines of their
descriptions.
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

SEED, NAMES, PACKAGES, FIRST = 83, 200, 15_000, 10
PARAGRAPHS = 10
DEPTH = 100
TEXT = {"type": "text"}
NAME = {"type": "keyword", "fields": {"text": {"type": "text"}}}


class Collection(NamedTuple):
    """Documents that have names.

    Attributes:
        name: the field that holds the name.
        mapping: field -> its mapping.
        documents: the documents' ``_source``, in the order of their ids.
        searches: how many names are searched for.
    """

    name: str
    mapping: Mapping[str, Any]
    documents: Sequence[Mapping[str, str]]
    searches: int = NAMES


def packages(_files: Sequence[Path]) -> Collection:
    """Return a sample of the packages that apt knows."""
    listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout  # noqa: S607
    matches = re.findall(r"^Package: (\S+)$.*?^Description(?:-en)?: (.+?)$", listed, re.MULTILINE | re.DOTALL)
    by_name = {name: {"name": name, "summary": summary} for name, summary in matches}
    chosen = random.Random(SEED).sample(sorted(by_name), min(PACKAGES, len(by_name)))
    return Collection("name", {"name": NAME, "summary": TEXT}, [by_name[name] for name in chosen])


def squad(files: Sequence[Path]) -> Collection:
    """Return the first paragraphs of SQuAD's articles; those of an article share one name."""
    articles = [article for file in files for article in json.loads(file.read_text("utf-8"))["data"]]
    documents = [
        {"title": article["title"].replace("_", " "), "text": paragraph["context"]}
        for article in articles
        for paragraph in article["paragraphs"][:PARAGRAPHS]
    ]
    return Collection("title", {"title": TEXT, "text": TEXT}, documents)


def cacm(files: Sequence[Path]) -> Collection:
    """Return CACM's titles and abstracts; those without an abstract have an empty text."""
    documents = []
    with tarfile.open(files[0]) as archive:
        for member in sorted(archive.getmembers(), key=lambda each: each.name):
            if (content := archive.extractfile(member)) is None:
                continue
            whole = re.sub(r"<[^>]*>", "", content.read().decode("latin-1"))
            title, *others = (" ".join(block.split()) for block in re.split(r"\n\s*\n", whole.strip()))
            has_text = bool(others) and not others[0].startswith("CACM ")
            documents.append({"title": title, "text": others[0] if has_text else ""})
    return Collection("title", {"title": TEXT, "text": TEXT}, documents, 100)


COLLECTIONS = {read.__name__: read for read in (packages, squad, cacm)}


def index(client: Client, name: str, collection: Collection) -> None:
    """Index the documents and build their vectors, unless that was done before."""
    if not client.indices.exists(index=name):
        body = {"settings": {"number_of_shards": 1}, "mappings": {"properties": dict(collection.mapping)}}
        client.indices.create(index=name, body=body)
        every = ({"_index": name, "_id": f"{at}", **source} for at, source in enumerate(collection.documents))
        bulk(client, every)
        client.indices.refresh(index=name)
    print(f"{name}: {build_on_screen(client, name)}", flush=True)


def ranks(
    client: Client, index: str, collection: Collection, names: Iterable[str], rerank: Any
) -> list[tuple[int, float]]:
    """Return, for each name, the rank of the first hit that has it (0 below a hundred), and the milliseconds."""
    found = []
    for name in names:
        began = time.perf_counter()
        answer = client.search(name, index=index, rerank=rerank, size=DEPTH)
        took_ms = (time.perf_counter() - began) * 1000
        hits = [hit["_source"][collection.name] for hit in answer["hits"]["hits"]]
        found.append((hits.index(name) + 1 if name in hits else 0, took_ms))
    return found


def main() -> None:
    """Index, search and count, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("collection", choices=COLLECTIONS)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--url", required=True)
    parser.add_argument("--list", action="store_true", help="list the names that reranking moves from the first rank")
    options = parser.parse_args()
    collection = COLLECTIONS[options.collection](options.files)
    every = sorted({source[collection.name] for source in collection.documents})
    names = random.Random(SEED).sample(every, min(collection.searches, len(every)))
    with connect(options.url) as client:
        name = f"known-{options.collection}"
        index(client, name, collection)
        plain = ranks(client, name, collection, names, rerank=False)
        reranked = ranks(client, name, collection, names, rerank={"depth": DEPTH, "deadline_ms": None})
        print(f"{len(collection.documents):,} documents, {len(names)} names; fields {client.fields_of(name).read}")
        for label, found in (("plain", plain), ("reranked", reranked)):
            first, ten = (sum(0 < rank <= most for rank, _ in found) for most in (1, FIRST))
            median_ms = statistics.median(took_ms for _, took_ms in found)
            print(f"{label:9} first {first}, in the first ten {ten}, median {median_ms:.1f} ms")
        if options.list:
            for known, (before, _), (after, _) in zip(names, plain, reranked, strict=True):
                if after != 1:
                    print(f"{known!r}: plain {before}, reranked {after}")


if __name__ == "__main__":
    main()
