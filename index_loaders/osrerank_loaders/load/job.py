"""Run a whole load: create the index or resume, send the documents, check their count, finish the index."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchWarning, RequestError

from osrerank.errors import BulkIndexError, CorpusFormatError, LoaderError
from osrerank.formats.sources import STDIN, Meter, files_of, open_sources
from osrerank.retrieval.requests import engine_of, is_embedded
from osrerank_loaders.collections.base import Loader, Record, read_records
from osrerank_loaders.load.bulk import BulkBatch, BulkOptions, BulkOutcome, Rejection, send_all
from osrerank_loaders.load.duplicates import name_duplicates
from osrerank_loaders.load.encoding import Repair
from osrerank_loaders.load.fingerprint import fingerprints
from osrerank_loaders.load.mapping import IndexOptions, fixed_options, index_body, settings_when_loaded
from osrerank_loaders.load.reading import Reading
from osrerank_loaders.load.state import LoadState, read_state

_FIRST = 5
_EXISTS = "resource_already_exists_exception"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a collection is loaded.

    Attributes:
        skip_bad: how many records may be bad, rejected or repeated, in sum.
        recreate: whether to delete an index of that name first.
        repair_encoding: whether to repair double-encoded UTF-8.
        force_merge: whether to merge the index into one segment at the end.
        checkpoint_s: the time between two checkpoints in the index, in seconds.
        index: the options of the index.
        bulk: the options of the bulk requests.
    """

    skip_bad: int = 0
    recreate: bool = False
    repair_encoding: bool = False
    force_merge: bool = False
    checkpoint_s: float = 5.0
    index: IndexOptions = field(default_factory=IndexOptions)
    bulk: BulkOptions = field(default_factory=BulkOptions)


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a load: ``read = indexed + skipped + failed + duplicates``, checked against the index's own count.

    Attributes:
        read: the number of the collection's records.
        indexed: the number of its documents in the index.
        skipped: the number of bad records.
        failed: the number of documents that the engine refused.
        duplicates: the number of records with the id of an earlier record.
        resumed_from: the number of records that an earlier run had loaded.
        took_s: the wall time of this run, in seconds.
        notes: the engine's warnings and the first tolerated problems, one line each.
    """

    read: int
    indexed: int
    skipped: int = 0
    failed: int = 0
    duplicates: int = 0
    resumed_from: int = 0
    took_s: float = 0.0
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        resumed = f" ({self.resumed_from:,} of them by an earlier run)" if self.resumed_from else ""
        return (
            f"{self.read:,} records read{resumed}: {self.indexed:,} documents in the index, {self.skipped:,} skipped, "
            f"{self.failed:,} failed, {self.duplicates:,} duplicates; {self.took_s:.1f} s"
        )


Report = Callable[[int, int], None]
"""A function that is called during a load with the records read and the bytes read from disk."""


def load(
    client: OpenSearch,
    index: str,
    loader: Loader,
    paths: Sequence[str],
    *,
    options: LoadOptions | None = None,
    report: Report = lambda _records, _bytes: None,
) -> Summary:
    """Load a collection into an index; an interrupted load resumes where it stopped.

    Raises:
        LoaderError: the index exists and belongs to another load, or the server did not respond.
        CorpusFormatError: there are more bad records than ``skip_bad``; the records before the last are in the index.
        BulkIndexError: the engine refused more documents than ``skip_bad``.
    """
    return _Load(client, index, loader, paths, options=options or LoadOptions(), report=report).run()


class _Load:
    """One load: its steps and their state."""

    def __init__(
        self,
        client: OpenSearch,
        index: str,
        loader: Loader,
        paths: Sequence[str],
        *,
        options: LoadOptions,
        report: Report,
    ) -> None:
        self._engine = engine_of(client)
        self._retry_budget = dataclasses.replace(options.bulk.retry_budget, server=self._engine)
        options = dataclasses.replace(options, bulk=dataclasses.replace(options.bulk, retry_budget=self._retry_budget))
        self._client, self._index, self._loader, self._options, self._report = client, index, loader, options, report
        self._files = files_of(paths, loader.files)
        self._fingerprints = fingerprints(self._files)
        self._meter = Meter()
        self._repair = Repair()
        self._present: list[str] = []
        self._warned: list[str] = []
        self._failed = 0
        self._refused: list[Rejection] = []

    def run(self) -> Summary:
        started_s = time.monotonic()
        state = self._begin()
        if state.complete:
            return self._already_complete(state)
        reading = Reading(self._records(self._meter), skip_bad=self._options.skip_bad)
        reached = self._send(reading, state)
        if reading.stopped is not None:
            raise reading.stopped
        summary = self._check_counts(reading, state.records)
        self._finish(reached, summary)
        return dataclasses.replace(summary, took_s=time.monotonic() - started_s)

    def _already_complete(self, state: LoadState) -> Summary:
        expected = state.records - state.skipped - state.failed - state.duplicates
        if (indexed := self._count()) != expected:
            raise LoaderError(
                f"index {self._index} was loaded with {expected} documents and holds {indexed}: "
                "something else changed it; use another --index, or --recreate"
            )
        if STDIN in self._files and (read := sum(1 for _record in self._records())) != state.records:
            raise LoaderError(_changed(self._index, f"standard input has {read} records now and had {state.records}"))
        return Summary(state.records, indexed, state.skipped, state.failed, state.duplicates, state.records)

    def _records(self, meter: Meter | None = None) -> Iterator[Record]:
        sources = open_sources(self._files, self._loader.files, meter, first_bytes=self._fingerprints.consumed)
        records = read_records(self._loader, sources, contents=self._options.index.contents)
        return map(self._repair, records) if self._options.repair_encoding else records

    def _begin(self) -> LoadState:
        """Create the index if it does not exist; return the state of its load."""
        fixed = fixed_options(self._loader, self._options.index)
        fixed += ("repair_encoding",) * self._options.repair_encoding
        fresh = LoadState.begin(self._loader.name, self._files, fixed, self._fingerprints.digests)
        if self._options.recreate:
            self._retry_budget.call(lambda: self._client.indices.delete(index=self._index, ignore_unavailable=True))
        if not self._retry_budget.call(lambda: self._client.indices.exists(index=self._index)):
            self._create(fresh)
        stored = read_state(self._client, self._index, self._retry_budget)
        if stored is None or not stored.same_load(fresh):
            raise LoaderError(_taken(self._index, stored))
        if stored.digests != fresh.digests:
            raise LoaderError(_changed(self._index, f"{self._differing(stored)} has changed"))
        return stored

    def _differing(self, stored: LoadState) -> str:
        """Return the first input with another digest than in the stored state."""
        digests_before = stored.digests or ("",) * len(self._files)
        pairs = zip(self._files, digests_before, self._fingerprints.digests, strict=True)
        name = next(name for name, old, new in pairs if old != new)
        return "standard input" if name == STDIN else name

    def _create(self, state: LoadState) -> None:
        """Create the index, and note the engine's warnings, such as that of an unsupported similarity."""
        fixed = is_embedded(self._client)
        body = index_body(self._loader, self._options.index, state.as_meta(), fixed_similarity=fixed)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", OpenSearchWarning)
            try:
                self._retry_budget.call(lambda: self._client.indices.create(index=self._index, body=body))
            except RequestError as error:
                if error.error != _EXISTS:  # the first response was lost, and the repeated request finds the index
                    raise
        self._warned += [str(warning.message) for warning in warned]

    def _send(self, reading: Reading, state: LoadState) -> LoadState:
        """Send the missing documents; write a checkpoint every ``checkpoint_s`` seconds and at the end."""
        written_at, all_accepted = time.monotonic(), True
        for batch, outcome in send_all(
            self._client, self._index, reading.batches(self._options.bulk, after=state.records), self._options.bulk
        ):
            self._note(batch, outcome)
            all_accepted = all_accepted and not outcome.rejected  # the next run sends a rejected document again
            if all_accepted:
                state = dataclasses.replace(state, records=batch.end)
            if all_accepted and time.monotonic() - written_at > self._options.checkpoint_s:
                state.write(self._client, self._index, self._retry_budget)
                written_at = time.monotonic()
            self._report(batch.end, self._meter.bytes_read)
        state.write(self._client, self._index, self._retry_budget)
        return state

    def _note(self, batch: BulkBatch, outcome: BulkOutcome) -> None:
        self._failed += len(outcome.rejected)
        self._refused += outcome.rejected[: max(0, _FIRST - len(self._refused))]
        self._present += outcome.present[: max(0, _FIRST - len(self._present))]
        if len(outcome.rejected) == len(batch.entries) > 1:
            raise self._bulk_error(f"{self._engine} refused all {len(batch.entries)} documents of a request")

    def _check_counts(self, reading: Reading, resumed_from: int) -> Summary:
        """Compare the number of documents in the index with the records read, and explain a difference."""
        self._retry_budget.call(lambda: self._client.indices.refresh(index=self._index))
        indexed = self._count()
        duplicates = reading.read - reading.skipped - self._failed - indexed
        problems = [note] if (note := self._repair.note) else []
        problems += [str(error) for error in reading.errors]
        problems += [f"{self._engine} refused {refusal.doc_id!r}: {refusal.reason}" for refusal in self._refused]
        if duplicates < 0:
            raise LoaderError(
                f"index {self._index} holds {-duplicates} documents more than the collection; "
                "something else writes to it: use another --index, or --recreate"
            )
        if duplicates:
            problems.append(self._duplicates(duplicates))
        if self._failed and self._failed + reading.skipped > self._options.skip_bad:
            raise self._bulk_error(f"{self._engine} refused {self._failed} documents")
        if duplicates + self._failed + reading.skipped > self._options.skip_bad:
            raise CorpusFormatError(f"{problems[-1]}; to skip such records, pass --skip-bad")
        return Summary(
            reading.read,
            indexed,
            reading.skipped,
            self._failed,
            duplicates,
            resumed_from,
            notes=tuple(self._warned + problems),
        )

    def _duplicates(self, count: int) -> str:
        names = tuple(self._present) if STDIN in self._files else name_duplicates(self._records(), shown=_FIRST)
        return f"{count} documents have the id of an earlier one and were left out: {', '.join(names) or 'not named'}"

    def _bulk_error(self, problem: str) -> BulkIndexError:
        first = self._refused[0]
        return BulkIndexError(
            f"{problem}; the first is {first.doc_id!r}: {first.reason} (the same command tries them again, "
            "--skip-bad N tolerates N)",
            ok=self._count(),
            failed=self._failed,
            first=[refusal.as_dict() for refusal in self._refused],
        )

    def _count(self) -> int:
        return int(self._retry_budget.call(lambda: self._client.count(index=self._index))["count"])

    def _finish(self, reached: LoadState, summary: Summary) -> None:
        """Change the index to its settings for searching, and mark the load as complete."""
        if self._options.force_merge:
            merge = {"max_num_segments": 1, "request_timeout": 24 * 3600}
            self._retry_budget.call(lambda: self._client.indices.forcemerge(index=self._index, params=merge))
        settings = settings_when_loaded(self._options.index)
        self._retry_budget.call(lambda: self._client.indices.put_settings(index=self._index, body=settings))
        state = dataclasses.replace(
            reached,
            records=summary.read,
            complete=True,
            skipped=summary.skipped,
            failed=summary.failed,
            duplicates=summary.duplicates,
        )
        state.write(self._client, self._index, self._retry_budget)


def _taken(index: str, stored: LoadState | None) -> str:
    """Say why the load of an existing index cannot be resumed, and what to do."""
    if stored is None:
        origin = "was not made by osrerank index"
    else:
        names = ", ".join((*stored.files[:_FIRST], *stored.options))
        origin = f"holds another load (loader {stored.loader}, files {names})"
    return (
        f"index {index} exists and {origin}; choose another --index, pass --recreate to delete it and load it again, "
        "or pass the files and options that it was loaded with"
    )


def _changed(index: str, difference: str) -> str:
    return (
        f"index {index} was loaded from files of the same names, but {difference}; choose another --index, pass "
        "--recreate to delete the index and load it again, or pass the content that it was loaded from"
    )
