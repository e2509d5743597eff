"""Turn a collection's records into batches for bulk requests, and count bad records."""

from collections.abc import Iterable, Iterator

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.types import Document
from osrerank_loaders.collections.base import Record
from osrerank_loaders.load.bulk import BulkBatch, BulkEntry, BulkOptions, encode_document

_MAX_ERRORS = 20
"""The maximum number of errors that `RecordReader.errors` contains."""


class RecordReader:
    """Reads a collection's records once, from the first to the last.

    Args:
        records: documents, and the errors of records that could not be read as documents.
        max_skipped: the number of bad records that may be skipped. The next bad record ends the reading.

    Attributes:
        n_read: the number of records read, including bad ones.
        n_skipped: the number of bad records that were skipped.
        errors: the errors of the first bad records.
        final_error: the error of the bad record that ended the reading, or None if all records were read.
    """

    def __init__(self, records: Iterable[Record], *, max_skipped: int = 0) -> None:
        self._records = records
        self._max_skipped = max_skipped
        self.n_read = 0
        self.n_skipped = 0
        self.errors: list[FormatError] = []
        self.final_error: FormatError | None = None

    def read_batches(self, options: BulkOptions, *, n_done: int = 0) -> Iterator[BulkBatch]:
        """Yield the documents after the first ``n_done`` records, which an earlier job loaded, in batches.

        If a bad record ends the reading, the documents before it are yielded, and `final_error` is set.
        """
        entries: list[BulkEntry] = []
        n_bytes = 0
        for entry in self._read_entries(n_done):
            if entries and (n_bytes + len(entry.body) > options.max_bytes or len(entries) == options.max_documents):
                yield BulkBatch(tuple(entries), n_read=self.n_read - 1)  # this entry begins the next batch
                entries, n_bytes = [], 0
            entries.append(entry)
            n_bytes += len(entry.body)
        if entries:
            n_read = self.n_read if self.final_error is None else self.n_read - 1  # without the record that ended it
            yield BulkBatch(tuple(entries), n_read=n_read)

    def _read_entries(self, n_done: int) -> Iterator[BulkEntry]:
        try:
            for record in self._records:
                self.n_read += 1
                entry = record if isinstance(record, FormatError) else self._encode(record)
                if isinstance(entry, FormatError):
                    self._skip(entry)
                elif self.n_read > n_done:
                    yield entry
        except FormatError as error:
            self.final_error = error

    def _skip(self, error: FormatError) -> None:
        """Count a bad record. Raise its error if the maximum number of records was skipped before."""
        if self.n_skipped == self._max_skipped:
            raise error
        self.n_skipped += 1
        if len(self.errors) < _MAX_ERRORS:
            self.errors.append(error)

    def _encode(self, document: Document) -> BulkEntry | FormatError:
        try:
            return encode_document(document)
        except (ValueError, TypeError) as error:
            reason = f"document {document.doc_id!r} cannot be written as JSON in UTF-8 ({error})"
            return CorpusFormatError(f"record {self.n_read} of the collection: {reason}", line=self.n_read)
