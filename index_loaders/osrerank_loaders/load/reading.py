"""From records to batches: skips and counts bad records, or stops at one."""

from collections.abc import Iterable, Iterator

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.types import Document
from osrerank_loaders.collections.base import Record
from osrerank_loaders.load.bulk import BulkBatch, BulkEntry, BulkOptions, entry

SHOWN_ERRORS = 20


class Reading:
    """One pass over a collection's records.

    Attributes:
        read: records read, bad ones among them.
        skipped: bad records.
        errors: the first of their errors.
        stopped: the bad record that ended the reading; None if none has.
    """

    def __init__(self, records: Iterable[Record], *, skip_bad: int = 0) -> None:
        self._records = records
        self._skip_bad = skip_bad
        self.read = 0
        self.skipped = 0
        self.errors: list[FormatError] = []
        self.stopped: FormatError | None = None

    def batches(self, options: BulkOptions, *, after: int = 0) -> Iterator[BulkBatch]:
        """Yield the documents after the first ``after`` records in batches; end early at one bad record too many."""
        held: list[BulkEntry] = []
        held_bytes = 0
        for item in self._entries(after):
            if held and (held_bytes + len(item.body) > options.max_bytes or len(held) == options.max_documents):
                yield BulkBatch(tuple(held), self.read - 1)
                held, held_bytes = [], 0
            held.append(item)
            held_bytes += len(item.body)
        if held:
            yield BulkBatch(tuple(held), self.read - (self.stopped is not None))

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
        """Count a bad record, or raise it when it is one too many."""
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
