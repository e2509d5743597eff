"""What the commands `index` and `download` do."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from opensearchpy import OpenSearch

from osrerank.errors import ConfigError
from osrerank.formats.sources import files_of
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.download import fetch, published, sha256_of
from osrerank_loaders.load.bulk import BulkOptions
from osrerank_loaders.load.job import LoadOptions, Summary, load
from osrerank_loaders.load.mapping import IndexOptions
from osrerank_loaders.load.progress import download_progress, load_progress
from osrerank_loaders.load.retry import RetryBudget


def load_collection(connect: Callable[..., OpenSearch], options: Mapping[str, Any]) -> Summary:
    """Load a collection with the options of the command line."""
    loader = LOADERS[options["loader"]]
    client = connect(options["url"], pool_maxsize=options["in_flight"] + 2)
    try:
        with load_progress(files_of(options["paths"], loader.files)) as report:
            return load(
                client, options["index_name"], loader, options["paths"], options=_options(options), report=report
            )
    finally:
        client.close()


def _options(options: Mapping[str, Any]) -> LoadOptions:
    return LoadOptions(
        skip_bad=options["skip_bad"],
        recreate=options["recreate"],
        repair_encoding=options["repair_encoding"],
        force_merge=options["force_merge"],
        checkpoint_s=options["checkpoint_s"],
        index=IndexOptions(
            **{name: options[name] for name in ("k1", "b", "shards", "replicas", "contents", "language")}
        ),
        bulk=BulkOptions(
            max_bytes=int(options["bulk_mb"] * (1 << 20)),
            in_flight=options["in_flight"],
            retry_budget=RetryBudget(give_up_s=options["give_up_s"]),
        ),
    )


def download_collection(
    collection: str, folder: Path, only: Sequence[str], catalogue: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """Download a collection's files, or only those that are named.

    Yields:
        The path of each complete and checked file, with a note if the file could not be verified, else "".

    Raises:
        ConfigError: the catalogue has no such collection, or the collection no such file.
    """
    listed = published(catalogue)
    if collection not in listed:
        names = ", ".join(sorted(listed))
        raise ConfigError(
            f"there is no collection {collection}; there are {names}", setting="collection", source="argument"
        )
    files = listed[collection].files
    if unknown := set(only) - {file.name for file in files}:
        names = ", ".join(file.name for file in files)
        raise ConfigError(
            f"--only {min(unknown)}: {collection} has the files {names}", setting="only", source="argument"
        )
    for file in files:
        if not only or file.name in only:
            with download_progress(file.name, file.bytes) as report:
                path = fetch(file, folder, report=report)
            yield (
                path,
                "" if file.md5 else f"{path}: not verified: no MD5 is published; its SHA-256 is {sha256_of(path)}",
            )
