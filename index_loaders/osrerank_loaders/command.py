"""Load or download a collection with the options of the commands `index` and `download`."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from osrerank.client import connect
from osrerank.errors import ConfigError
from osrerank.formats.files import hash_file
from osrerank.formats.sources import list_files
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.download import fetch, read_catalogue
from osrerank_loaders.load.bulk import BulkOptions
from osrerank_loaders.load.job import LoadOptions, Summary, load
from osrerank_loaders.load.mapping import IndexOptions
from osrerank_loaders.load.progress import download_progress, load_progress
from osrerank_loaders.load.retry import RetryBudget


def load_collection(options: Mapping[str, Any]) -> Summary:
    """Load a collection, with options such as ``{"loader": "beir", "paths": ("corpus.jsonl",), ...}``."""
    loader = LOADERS[options["loader"]]
    # two connections more than the bulk requests need, for checkpoints
    client = connect(options["url"], pool_maxsize=options["in_flight"] + 2)
    try:
        paths = options["paths"]
        load_options = _load_options(options)
        with load_progress(list_files(paths, loader.files)) as report:
            return load(client, options["index_name"], loader, paths, options=load_options, report=report)
    finally:
        client.close()


def _load_options(options: Mapping[str, Any]) -> LoadOptions:
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
            max_bytes=int(options["bulk_mb"] * 2**20),
            in_flight=options["in_flight"],
            retry_budget=RetryBudget(give_up_s=options["give_up_s"]),
        ),
    )


def download_collection(
    collection: str, folder: Path, only: Sequence[str], catalogue: Path | None = None
) -> Iterator[tuple[Path, str]]:
    """Download the files of a collection into a folder.

    Args:
        collection: the collection's name in the catalogue.
        folder: where the files are written.
        only: the names of the files to download. If empty, all files are downloaded.
        catalogue: a JSON file to use instead of the package's catalogue.

    Yields:
        The path of each downloaded file, and a note for the user. The note is "" if the file's MD5 was verified.

    Raises:
        ConfigError: the collection or a file is not in the catalogue.
    """
    collections = read_catalogue(catalogue)
    if collection not in collections:
        reason = f"there is no collection {collection!r}; choose one of {', '.join(sorted(collections))}"
        raise ConfigError(reason, setting="collection", source="argument")
    files = collections[collection].files
    unknown = sorted(set(only) - {file.name for file in files})
    if unknown:
        names = ", ".join(file.name for file in files)
        reason = f"{collection} has no file {unknown[0]!r} to download with --only; its files are {names}"
        raise ConfigError(reason, setting="only", source="argument")
    for file in files:
        if not only or file.name in only:
            with download_progress(file.name, file.bytes) as report:
                path = fetch(file, folder, report=report)
            note = ""
            if not file.md5:
                note = f"{path} is not verified: no MD5 is published; its SHA-256 is {hash_file(path)}"
            yield path, note
