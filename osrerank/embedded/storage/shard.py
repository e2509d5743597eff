"""The search index of an index: a tantivy index that can always be rebuilt from the store.

Our analyzers turn a text into terms, and tantivy gets the terms joined by a separator. Its own analysis only splits at
the separator and drops ``GAP``, the placeholder that keeps the positions of removed stop words.

tantivy's BM25 averages a field's length over all documents, Lucene's over the documents that have a term in the field.
So a text field has two more columns, from which Lucene's score is computed if some documents lack the field. One has
tokens made of a term, its frequency in the document and the document's length; the other has the length alone.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tantivy

from osrerank.embedded.analysis.tokens import GAP, Analyzer
from osrerank.embedded.errors import Fault
from osrerank.embedded.storage.store import StoredDocument

ID, SOURCE, SEQ, PRESENT = "_id", "_source", "_seq", "_present"
SEPARATOR = "\x1f"
LENGTH, DISTINCT = SEPARATOR + "length", SEPARATOR + "distinct"
"""Parts of a token in ``PRESENT``: a text field's path, `LENGTH` and its number of terms, or `DISTINCT` and its number
of different terms."""
JOIN = "\x1e"
"""Separates a term, its frequency and the length of its document in a token."""
EVERY = "*"
"""The token of every document in ``PRESENT``. Its frequency is BM25's document count, with deleted documents."""
WRITER_BYTES = 64_000_000
VALUE_GAP = [GAP] * 100
"""Separates a text field's values, so that no phrase matches across two (OpenSearch's position_increment_gap)."""

log = logging.getLogger(__name__)

Panic: type[BaseException] = next(
    (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"), RuntimeError
)
"""The exception of a failed assertion inside tantivy, for instance on a truncated file."""
BROKEN = (ValueError, OSError, RuntimeError, Panic)
"""tantivy's errors when its files cannot be read or written."""


@contextlib.contextmanager
def reading(folder: Path | None) -> Iterator[None]:
    """Turn tantivy's errors over missing or damaged files into the engine's 500."""
    try:
        yield
    except UnicodeError:
        raise  # the error is in the request, not in the files
    except BROKEN as error:
        cause = f"{type(error).__name__}: {error}"
        reason = f"the search index in {folder} failed ({cause}): try again"
        raise Fault(500, "search_engine_exception", reason) from error


class FieldTotals(NamedTuple):
    """Lucene's statistics of a text field, over the documents that have a term in it, including deleted ones.

    Attributes:
        documents: the number of documents.
        tokens: the total number of terms that these documents have in the field.
        pairs: the number of pairs of a document and one of its different terms.
    """

    documents: int
    tokens: int
    pairs: int


def encode_length(length: int) -> int:
    """Return a length as Lucene stores it in a byte: exact up to 24; of the excess, the four highest bits."""
    excess = length - 24
    dropped_bits = max(0, excess.bit_length() - 4)
    return length if excess <= 0 else 24 + (excess >> dropped_bits << dropped_bits)


class CheckedSearcher:
    """A tantivy searcher that raises faults when its files cannot be read."""

    def __init__(self, searcher: tantivy.Searcher, folder: Path | None) -> None:
        self._searcher = searcher
        self._folder = folder
        self._totals: dict[str, FieldTotals] = {}

    def totals(self, path: str) -> FieldTotals:
        """Return the statistics of a text field."""
        if path not in self._totals:
            lengths, distinct = self._marks(path + LENGTH), self._marks(path + DISTINCT)
            self._totals[path] = FieldTotals(
                sum(lengths.values()),
                *(sum(n * count for n, count in counts.items()) for counts in (lengths, distinct)),
            )
        return self._totals[path]

    def _marks(self, mark: str) -> dict[int, int]:
        """Return number -> how many documents have the mark followed by this number."""
        with reading(self._folder):
            return {int(token[len(mark) :]): count for token, count in self._searcher.terms_with_prefix(PRESENT, mark)}

    @property
    def num_docs(self) -> int:
        return int(self._searcher.num_docs)

    def docs(self, addresses: Iterable[tantivy.DocAddress]) -> list[tantivy.Document]:
        """Return stored documents."""
        with reading(self._folder):
            return [self._searcher.doc(address) for address in addresses]

    def __getattr__(self, name: str) -> Any:
        """Return a method of tantivy's searcher, with its errors turned into faults."""
        method = getattr(self._searcher, name)

        def guarded(*args: Any, **options: Any) -> Any:
            with reading(self._folder):
                return method(*args, **options)

        return guarded


class Shard:
    """A tantivy index in its own folder.

    Args:
        folder: the folder, created if absent; None for an index in memory.
        layout: field path -> the column's type.

    Raises:
        ValueError, OSError: the files in the folder are damaged.
    """

    def __init__(self, folder: Path | None, layout: Mapping[str, str]) -> None:
        self.folder = folder
        self.layout = dict(layout)
        self.names = {path: f"f{number}" for number, path in enumerate(layout)}
        self.exact = {path: f"{name}_exact" for path, name in self.names.items()}
        self.lengths = {path: f"{name}_length" for path, name in self.names.items()}
        self.schema = self._schema()
        self._index = self._opened(folder)
        self._index.config_reader("manual")
        cut = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(f"[^{SEPARATOR}]+"))
        self._index.register_tokenizer("terms", cut.filter(tantivy.Filter.custom_stopword([GAP])).build())
        self._writer: tantivy.IndexWriter | None = None
        self.reload()

    def _opened(self, folder: Path | None) -> tantivy.Index:
        if folder is None:
            return tantivy.Index(self.schema)
        if (folder / "meta.json").exists():
            return tantivy.Index.open(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        return tantivy.Index(self.schema, path=str(folder))

    def _schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(ID, stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(SOURCE, stored=True)
        builder.add_unsigned_field(SEQ, indexed=True, fast=True)
        builder.add_text_field(PRESENT, tokenizer_name="raw", index_option="basic")
        for path, column in self.layout.items():
            name = self.names[path]
            if column == "text":
                builder.add_text_field(name, tokenizer_name="terms", index_option="position")
                builder.add_text_field(self.exact[path], tokenizer_name="whitespace", index_option="basic")
                builder.add_unsigned_field(self.lengths[path], fast=True)
            elif column == "keyword":
                builder.add_text_field(name, fast=True, tokenizer_name="raw", index_option="basic")
            elif column == "long":
                builder.add_integer_field(name, indexed=True, fast=True)
            else:
                builder.add_float_field(name, indexed=True, fast=True)
        return builder.build()

    def reload(self) -> None:
        """Make the last commit visible to new searches."""
        self._index.reload()
        self.searcher = CheckedSearcher(self._index.searcher(), self.folder)

    @staticmethod
    def numbers(searcher: CheckedSearcher, addresses: list[tantivy.DocAddress]) -> list[int]:
        """Return the sequence numbers of the documents at these addresses."""
        return [int(number or 0) for number in searcher.fast_field_values(SEQ, addresses)]

    @property
    def has_writer(self) -> bool:
        """Whether the writer is open."""
        return self._writer is not None

    def open_writer(self) -> None:
        """Open the writer if it is closed; changes that an earlier writer did not commit are lost."""
        if self._writer is None:
            # One thread: documents keep the order of their sequence numbers within a segment.
            self._writer = self._index.writer(WRITER_BYTES, num_threads=1)

    def document(
        self, row: StoredDocument, fields: Mapping[str, list[Any]], analyzer: Callable[[str], Analyzer]
    ) -> tantivy.Document:
        """Return a document for `add`.

        Args:
            row: the stored document, with its source.
            fields: field path -> values.
            analyzer: returns the analyzer of a field path.
        """
        assert row.source is not None
        document = tantivy.Document()
        document.add_text(ID, row.doc_id)
        document.add_bytes(SOURCE, row.source.encode())
        document.add_unsigned(SEQ, row.seq)
        document.add_text(PRESENT, EVERY)
        for path, values in fields.items():
            document.add_text(PRESENT, path)
            if self.layout[path] == "text":
                self._add_terms(document, path, [analyzer(path).terms(value) for value in values])
            else:
                self._add_values(document, path, values)
        return document

    def add(self, document: tantivy.Document) -> None:
        """Add a document."""
        assert self._writer is not None
        self._writer.add_document(document)

    def _add_terms(self, document: tantivy.Document, path: str, texts: list[list[str]]) -> None:
        terms = texts[0]
        for text_terms in texts[1:]:
            terms = [*terms, *VALUE_GAP, *text_terms]
        counts = Counter(term for term in terms if term != GAP)
        if not counts:
            return
        length = counts.total()
        encoded_length = encode_length(length)
        document.add_text(PRESENT, f"{path}{LENGTH}{length}")
        document.add_text(PRESENT, f"{path}{DISTINCT}{len(counts)}")
        document.add_text(self.names[path], SEPARATOR.join(terms))
        document.add_text(
            self.exact[path], " ".join([f"{term}{JOIN}{count}{JOIN}{encoded_length}" for term, count in counts.items()])
        )
        document.add_unsigned(self.lengths[path], encoded_length)

    def _add_values(self, document: tantivy.Document, path: str, values: list[Any]) -> None:
        """Add values in ascending order, because an ascending sort uses the smallest."""
        adders: dict[str, Callable[[str, Any], None]] = {
            "keyword": document.add_text,
            "long": document.add_integer,
            "double": document.add_float,
        }
        add = adders[self.layout[path]]
        for value in sorted(set(values)):
            add(self.names[path], value)

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Remove documents by id; unknown ids are ignored."""
        assert self._writer is not None
        for doc_id in doc_ids:
            self._writer.delete_documents_by_term(ID, doc_id)

    def commit(self) -> None:
        """Make additions and deletions durable here, and visible after ``reload``."""
        assert self._writer is not None
        self._writer.commit()

    def close_writer(self, *, wait: bool = True) -> None:
        """Close the writer; uncommitted changes are lost. ``wait`` waits until its merges end."""
        writer, self._writer = self._writer, None
        if writer is not None and wait:
            with reading(self.folder):
                writer.wait_merging_threads()
