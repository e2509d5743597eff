"""Store the state of a load in ``_meta`` of the index's mapping, so that any machine can resume the load."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from opensearchpy import OpenSearch

from osrerank.formats.sources import is_virtual_path
from osrerank_loaders.load.retry import RetryBudget

_KEY = "osrerank_load"


@dataclass(frozen=True, slots=True)
class LoadState:
    """How far a load has come, and what it loads.

    Attributes:
        loader: the loader's name.
        files: the collection's files, each as ``name:size`` without its folder, so that files can be moved. Standard
            input and ir_datasets collections have only a name.
        options: the options that change the index or its documents, such as ``k1=0.9``.
        digests: the digest of each file, as `compute_fingerprints` returns it.
        records: the number of records at the beginning of the collection that need not be loaded again.
        complete: whether the load ended with the expected number of documents.
        skipped: the number of bad records. This, ``failed`` and ``duplicates`` are 0 until the load is complete.
        failed: the number of documents that the engine rejected.
        duplicates: the number of records with the id of an earlier record.
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
    def begin(cls, loader: str, files: Sequence[str], options: tuple[str, ...], digests: tuple[str, ...]) -> Self:
        """Return the state of a load before its first record."""
        names = (name if is_virtual_path(name) else f"{Path(name).name}:{Path(name).stat().st_size}" for name in files)
        return cls(loader, tuple(names), options, digests)

    def is_same_load(self, other: "LoadState") -> bool:
        """Return whether both loads use the same loader, files and options. Their digests can differ."""
        return (self.loader, self.files, self.options) == (other.loader, other.files, other.options)

    def to_meta(self) -> dict[str, Any]:
        """Return the state as the mapping's ``_meta``: ``{"osrerank_load": {"loader": "beir", ...}}``."""
        return {_KEY: asdict(self)}

    def write(self, client: OpenSearch, index: str, retry_budget: RetryBudget) -> None:
        retry_budget.call(lambda: client.indices.put_mapping(index=index, body={"_meta": self.to_meta()}))


def read_state(client: OpenSearch, index: str, retry_budget: RetryBudget) -> LoadState | None:
    """Read the state from the index's mapping, or return None if no loader created the index."""
    response = retry_budget.call(lambda: client.indices.get_mapping(index=index))
    (index_response,) = response.values()
    state = index_response["mappings"].get("_meta", {}).get(_KEY)
    if state is None:
        return None
    # JSON has no tuples
    tuples = {name: tuple(state.get(name, ())) for name in ("files", "options", "digests")}
    return LoadState(**{**state, **tuples})
