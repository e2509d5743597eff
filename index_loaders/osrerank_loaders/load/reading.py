"""Turn a collection's records into batches of bulk requests, and count or refuse bad records."""

from collections.abc import Iterable, Iterator

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.types import Document
from osrerank_loaders.collections.base import Record
from osrerank_loaders.load.bulk import BulkBatch, BulkEntry, BulkOptions, entry

SHOWN_ERRORS = 20


class Reading:
    """One pass over a collection's records.

    Attributes:
        read: the number of records read, including bad ones.
        skipped: the number of bad records that were skipped.
        errors: the errors of the first bad records.
        stopped: the error that ended the reading; None if there was none.
    """

    def __init__(self, records: Iterable[Record], *, skip_bad: int = 0) -> None:
        self._records = records
        self._skip_bad = skip_bad
        self.read = 0
        self.skipped = 0
        self.errors: list[FormatError] = []
        self.stopped: FormatError | None = None

    def batches(self, options: BulkOptions, *, after: int = 0) -> Iterator[BulkBatch]:
        """Yield the documents after the first ``after`` records in batches; end early after too many bad records."""
        entries: list[BulkEntry] = []
        n_bytes = 0
        for item in self._entries(after):
            if entries and (n_bytes + len(item.body) > options.max_bytes or len(entries) == options.max_documents):
                yield BulkBatch(tuple(entries), self.read - 1)
                entries, n_bytes = [], 0
            entries.append(item)
            n_bytes += len(item.body)
        if entries:
            yield BulkBatch(tuple(entries), self.read - (self.stopped is not None))

    def _entries(self, after: int) -> Iterator[BulkEntry]:
        try:
            for record in self._records:
                self.read += 1
                encoded = record if isinstance(record, FormatError) else self._encoded(record)
                if isinstance(encoded, FormatError):
                    self._bad(encoded)
                elif self.read > after:
                    yield encoded
        except FormatError as error:
            self.stopped = error

    def _bad(self, error: FormatError) -> None:
        """Count a bad record; raise its error if ``skip_bad`` were counted before."""
        if self.skipped == self._skip_bad:
            raise error
        self.skipped += 1
        if len(self.errors) < SHOWN_ERRORS:
            self.errors.append(error)

    def _encoded(self, document: Document) -> BulkEntry | FormatError:
        try:
            return entry(document)
        except (ValueError, TypeError) as error:
            reason = f"document {document.doc_id!r} cannot be written as JSON in UTF-8: {error}"
            return CorpusFormatError(f"record {self.read} of the collection: {reason}", line=self.read)
