"""The progress of a load, kept in the index itself, under ``_meta`` of its mapping.

It survives whatever the index survives, is deleted with it, needs no folder, and lets another machine resume the load.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from opensearchpy import OpenSearch

from osrerank.formats.sources import not_on_disk
from osrerank_loaders.load.retry import Patience

_KEY = "osrerank_load"


@dataclass(frozen=True, slots=True)
class LoadState:
    """The state of a load.

    Attributes:
        loader: the loader's name.
        files: the collection's files, each ``name:bytes``; names without folders, so that they may move.
        options: the options that change the index or its documents, such as ``k1=0.9``.
        digests: the digests of each file's content, as `fingerprint.fingerprints` takes them.
        records: records read so far of which every document is in the index.
        complete: whether the load ended with the right count.
        skipped: bad records, once complete.
        failed: documents that OpenSearch refused, once complete.
        duplicates: records with an id that came before, once complete.
    """

    loader: str
    files: tuple[str, ...]
    options: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    records: int = 0
    complete: bool = False
    skipped: int = 0
    failed: int = 0
    duplicates: int = 0

    @classmethod
    def begin(
        cls, loader: str, files: Sequence[str], options: tuple[str, ...] = (), digests: tuple[str, ...] = ()
    ) -> Self:
        """Return the state of a load that has not read anything."""
        names = (name if not_on_disk(name) else f"{Path(name).name}:{Path(name).stat().st_size}" for name in files)
        return cls(loader, tuple(names), options, digests)

    def same_load(self, other: "LoadState") -> bool:
        """Whether both have the same loader, files and options; the digests compare their content."""
        return (self.loader, self.files, self.options) == (other.loader, other.files, other.options)

    def as_meta(self) -> dict[str, Any]:
        """Return the mapping's ``_meta``."""
        return {_KEY: asdict(self)}

    def write(self, client: OpenSearch, index: str, patience: Patience) -> None:
        """Write the state into the index."""
        patience.call(lambda: client.indices.put_mapping(index=index, body={"_meta": self.as_meta()}))


def read_state(client: OpenSearch, index: str, patience: Patience) -> LoadState | None:
    """Return the state in the index; None if none of our loaders created it."""
    mapping = patience.call(lambda: client.indices.get_mapping(index=index))
    (only,) = mapping.values()
    kept = only["mappings"].get("_meta", {}).get(_KEY)
    if kept is None:
        return None
    lists = {name: tuple(kept.get(name, ())) for name in ("files", "options", "digests")}
    return LoadState(**{**kept, **lists})
