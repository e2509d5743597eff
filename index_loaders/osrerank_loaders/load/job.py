"""Load a collection into an index: create the index or resume, send the documents, and check their number."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchWarning, RequestError

from osrerank.errors import BulkIndexError, CorpusFormatError, LoaderError
from osrerank.formats.sources import STDIN, ByteCounter, list_files, open_sources
from osrerank.retrieval.requests import is_embedded, name_engine
from osrerank_loaders.collections.base import Loader, Record, read_records
from osrerank_loaders.load.bulk import BulkBatch, BulkOptions, BulkOutcome, Rejection, send_all
from osrerank_loaders.load.duplicates import describe_duplicates
from osrerank_loaders.load.encoding import EncodingRepair
from osrerank_loaders.load.fingerprint import compute_fingerprints
from osrerank_loaders.load.mapping import IndexOptions, build_index_body, build_search_settings, list_permanent_options
from osrerank_loaders.load.reading import RecordReader
from osrerank_loaders.load.state import LoadState, read_state

_MAX_EXAMPLES = 5
_EXISTS = "resource_already_exists_exception"
_ADVICE = "choose another --index, pass --recreate to delete the index and load it again, or"


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a collection is loaded.

    Attributes:
        skip_bad: the maximum total number of bad, rejected and duplicate records.
        recreate: whether to delete an existing index of that name first.
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
    """The counts of a load, for which ``read = indexed + skipped + failed + duplicates``.

    Attributes:
        read: the number of the collection's records.
        indexed: the number of documents in the index.
        skipped: the number of bad records.
        failed: the number of documents that the engine rejected.
        duplicates: the number of records with the id of an earlier record.
        resumed_from: the number of records loaded by an earlier run.
        took_s: the wall time of this run, in seconds.
        notes: the engine's warnings, and the first problems that ``skip_bad`` tolerated, each as a line of text.
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
"""A function that is called during a load with the numbers of records and bytes read so far, such as (500, 90000)."""


def load(
    client: OpenSearch,
    index: str,
    loader: Loader,
    paths: Sequence[str],
    *,
    options: LoadOptions | None = None,
    report: Report = lambda _records, _bytes: None,
) -> Summary:
    """Load a collection into an index. An interrupted load resumes where it stopped.

    Raises:
        LoaderError: the index exists and belongs to another load, or the server did not respond.
        CorpusFormatError: more than ``skip_bad`` records are bad or duplicates. Earlier records are in the index.
        BulkIndexError: the engine rejected more than ``skip_bad`` documents.
    """
    return _Load(client, index, loader, paths, options=options or LoadOptions(), report=report).run()


class _Load:
    """One call of `load`, with its counts and the problems found so far."""

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
        self._engine = name_engine(client)
        self._retry_budget = dataclasses.replace(options.bulk.retry_budget, server=self._engine)
        self._client = client
        self._index = index
        self._loader = loader
        self._options = options
        self._bulk_options = dataclasses.replace(options.bulk, retry_budget=self._retry_budget)
        self._report = report
        self._files = list_files(paths, loader.files)
        self._fingerprints = compute_fingerprints(self._files)
        self._byte_counter = ByteCounter()
        self._repair = EncodingRepair()
        self._warnings: list[str] = []
        self._n_rejected = 0
        self._first_rejections: list[Rejection] = []
        self._first_existing_ids: list[str] = []

    def run(self) -> Summary:
        began_at_s = time.monotonic()
        state = self._create_or_resume()
        if state.complete:
            return self._summarise_complete(state)
        reader = RecordReader(self._read_records(self._byte_counter), max_skipped=self._options.skip_bad)
        checkpoint = self._send(reader, state)
        if reader.final_error is not None:
            raise reader.final_error
        summary = self._summarise(reader, state.records)
        self._finish(checkpoint, summary)
        return dataclasses.replace(summary, took_s=time.monotonic() - began_at_s)

    def _read_records(self, byte_counter: ByteCounter | None = None) -> Iterator[Record]:
        sources = open_sources(self._files, self._loader.files, byte_counter, first_bytes=self._fingerprints.consumed)
        records = read_records(self._loader, sources, contents=self._options.index.contents)
        return map(self._repair, records) if self._options.repair_encoding else records

    def _create_or_resume(self) -> LoadState:
        """Create the index if it does not exist, and return the state that the index stores.

        Raises:
            LoaderError: the index belongs to another load, or the files have changed since.
        """
        options = list_permanent_options(self._loader, self._options.index)
        if self._options.repair_encoding:
            options += ("repair_encoding",)
        initial = LoadState.begin(self._loader.name, self._files, options, self._fingerprints.digests)
        if self._options.recreate:
            self._retry_budget.call(lambda: self._client.indices.delete(index=self._index, ignore_unavailable=True))
        if not self._retry_budget.call(lambda: self._client.indices.exists(index=self._index)):
            self._create(initial)
        state = read_state(self._client, self._index, self._retry_budget)
        if state is None:
            raise LoaderError(
                f"index {self._index} exists, and was not created by `osrerank index`; choose another --index, or pass "
                "--recreate to delete the index"
            )
        if not state.is_same_load(initial):
            files = ", ".join(state.files[:_MAX_EXAMPLES])
            raise LoaderError(
                f"index {self._index} exists and contains another load (loader {state.loader}, files {files}, "
                f"options {', '.join(state.options)}); {_ADVICE} pass the files and options that it was loaded with"
            )
        if state.digests != initial.digests:
            raise self._changed_error(f"{self._find_changed_input(state)} has changed")
        return state

    def _find_changed_input(self, state: LoadState) -> str:
        """Return the name of the first file whose digest differs from the stored one."""
        stored_digests = state.digests or ("",) * len(self._files)
        digests = zip(self._files, stored_digests, self._fingerprints.digests, strict=True)
        name = next(name for name, stored, current in digests if stored != current)
        return "standard input" if name == STDIN else name

    def _changed_error(self, difference: str) -> LoaderError:
        return LoaderError(
            f"index {self._index} was loaded from files of the same names, but {difference}; "
            f"{_ADVICE} pass the content that it was loaded from"
        )

    def _create(self, state: LoadState) -> None:
        """Create the index, and collect the engine's warnings, such as one about an unsupported similarity."""
        body = build_index_body(
            self._loader, self._options.index, state.to_meta(), has_one_similarity=is_embedded(self._client)
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", OpenSearchWarning)
            try:
                self._retry_budget.call(lambda: self._client.indices.create(index=self._index, body=body))
            except RequestError as error:
                # if the first response was lost, the repeated request finds the index
                if error.error != _EXISTS:
                    raise
        self._warnings += [str(warning.message) for warning in caught]

    def _summarise_complete(self, state: LoadState) -> Summary:
        """Return the counts of an earlier load. If the index or standard input has changed since, raise an error."""
        expected = state.records - state.skipped - state.failed - state.duplicates
        indexed = self._count()
        if indexed != expected:
            raise LoaderError(
                f"index {self._index} was loaded with {expected} documents and now contains {indexed}: "
                "something else changed it; use another --index, or --recreate"
            )
        if STDIN in self._files:
            n_records = sum(1 for _record in self._read_records())
            if n_records != state.records:
                raise self._changed_error(f"standard input now contains {n_records} records instead of {state.records}")
        return Summary(
            read=state.records,
            indexed=indexed,
            skipped=state.skipped,
            failed=state.failed,
            duplicates=state.duplicates,
            resumed_from=state.records,
        )

    def _send(self, reader: RecordReader, state: LoadState) -> LoadState:
        """Send the documents after the last checkpoint, and store a checkpoint every ``checkpoint_s`` seconds.

        A checkpoint never includes a rejected document or a later one, so the next run sends them again.

        Returns:
            The state at the last checkpoint.
        """
        checkpoint_at_s = time.monotonic()
        has_rejection = False
        batches = reader.read_batches(self._bulk_options, n_done=state.records)
        for batch, outcome in send_all(self._client, self._index, batches, self._bulk_options):
            self._record_outcome(batch, outcome)
            has_rejection = has_rejection or bool(outcome.rejections)
            if not has_rejection:
                state = dataclasses.replace(state, records=batch.n_read)
            if not has_rejection and time.monotonic() - checkpoint_at_s > self._options.checkpoint_s:
                state.write(self._client, self._index, self._retry_budget)
                checkpoint_at_s = time.monotonic()
            self._report(batch.n_read, self._byte_counter.bytes_read)
        state.write(self._client, self._index, self._retry_budget)
        return state

    def _record_outcome(self, batch: BulkBatch, outcome: BulkOutcome) -> None:
        """Count a batch's rejections, and raise an error if all of its documents were rejected."""
        self._n_rejected += len(outcome.rejections)
        self._first_rejections = [*self._first_rejections, *outcome.rejections][:_MAX_EXAMPLES]
        self._first_existing_ids = [*self._first_existing_ids, *outcome.existing_ids][:_MAX_EXAMPLES]
        if len(batch.entries) > 1 and len(outcome.rejections) == len(batch.entries):
            raise self._bulk_error(f"{self._engine} rejected all {len(batch.entries)} documents of a request")

    def _summarise(self, reader: RecordReader, resumed_from: int) -> Summary:
        """Return the load's counts. If they exceed ``skip_bad``, or the index has other documents, raise an error."""
        self._retry_budget.call(lambda: self._client.indices.refresh(index=self._index))
        indexed = self._count()
        n_duplicates = reader.n_read - reader.n_skipped - self._n_rejected - indexed
        if n_duplicates < 0:
            raise LoaderError(
                f"index {self._index} contains {-n_duplicates} documents more than the collection; "
                "something else writes to it: use another --index, or --recreate"
            )
        problems = [self._repair.note] if self._repair.note else []
        problems += [str(error) for error in reader.errors]
        problems += [f"{self._engine} rejected {item.doc_id!r}: {item.reason}" for item in self._first_rejections]
        if n_duplicates:
            problems.append(self._describe_duplicates(n_duplicates))
        n_unindexed = self._n_rejected + reader.n_skipped
        if self._n_rejected and n_unindexed > self._options.skip_bad:
            raise self._bulk_error(f"{self._engine} rejected {self._n_rejected} documents")
        if n_unindexed + n_duplicates > self._options.skip_bad:  # the duplicates, the last problem, exceed it
            raise CorpusFormatError(f"{problems[-1]}; to skip such records, pass --skip-bad")
        return Summary(
            read=reader.n_read,
            indexed=indexed,
            skipped=reader.n_skipped,
            failed=self._n_rejected,
            duplicates=n_duplicates,
            resumed_from=resumed_from,
            notes=tuple(self._warnings + problems),
        )

    def _describe_duplicates(self, count: int) -> str:
        if STDIN in self._files:
            examples = tuple(self._first_existing_ids)
        else:
            examples = describe_duplicates(self._read_records(), limit=_MAX_EXAMPLES)
        return (
            f"{count} documents have the id of an earlier one and were skipped: {', '.join(examples) or 'ids unknown'}"
        )

    def _bulk_error(self, problem: str) -> BulkIndexError:
        first = self._first_rejections[0]
        return BulkIndexError(
            f"{problem}; the first is {first.doc_id!r}: {first.reason} (run the same command to send them again, or "
            "pass --skip-bad N to tolerate N)",
            ok=self._count(),
            failed=self._n_rejected,
            first=[rejection.to_json() for rejection in self._first_rejections],
        )

    def _count(self) -> int:
        return int(self._retry_budget.call(lambda: self._client.count(index=self._index))["count"])

    def _finish(self, state: LoadState, summary: Summary) -> None:
        """Prepare the index for searches, and store in it that the load is complete."""
        if self._options.force_merge:
            merge = {"max_num_segments": 1, "request_timeout": 24 * 3600}
            self._retry_budget.call(lambda: self._client.indices.forcemerge(index=self._index, params=merge))
        settings = build_search_settings(self._options.index)
        self._retry_budget.call(lambda: self._client.indices.put_settings(index=self._index, body=settings))
        state = dataclasses.replace(
            state,
            records=summary.read,
            complete=True,
            skipped=summary.skipped,
            failed=summary.failed,
            duplicates=summary.duplicates,
        )
        state.write(self._client, self._index, self._retry_budget)
