"""The tantivy index behind an index of the embedded engine. It can be rebuilt from the store (`storage/store.py`).

Our analyzers turn a text into terms, and tantivy receives them joined by a separator. Its own analysis only splits at
the separator and drops `GAP`, the placeholder of a removed stop word, whose position it thereby keeps.

tantivy's BM25 averages a field's length over all documents, Lucene's over the documents with a term in the field.
So each text field gets two extra columns, from which Lucene's score is computed if some documents lack the field. One
has a token for each term, made of the term, its frequency and the field's length. The other has the length alone.
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
"""Infixes of the tokens in `PRESENT`, the hidden field that lists a document's fields: ``title<LENGTH>12`` means that
the field has 12 terms, ``title<DISTINCT>9`` that 9 of them are distinct."""
JOIN = "\x1e"
"""The separator between a term, its frequency and the field's length in a token."""
ALL_DOCUMENTS = "*"
"""The token that all documents have in `PRESENT`; its frequency is BM25's document count, with deleted documents."""
WRITER_BYTES = 64_000_000
"""The memory of a writer, in bytes."""
VALUE_GAP = [GAP] * 100
"""The gap between the values of a text field, so that no phrase matches across two (``position_increment_gap``)."""

logger = logging.getLogger(__name__)

Panic: type[BaseException] = next(
    (kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"), RuntimeError
)
"""The exception of a failed assertion inside tantivy, for instance on a truncated file."""
TANTIVY_ERRORS = (ValueError, OSError, RuntimeError, Panic)
"""The exceptions that tantivy raises if its files cannot be read or written."""


@contextlib.contextmanager
def translate_tantivy_errors(folder: Path | None) -> Iterator[None]:
    """Turn the exceptions that tantivy raises for missing or damaged files into the engine's 500."""
    try:
        yield
    except UnicodeError:
        raise  # the error is in the request, not in the files
    except TANTIVY_ERRORS as error:
        cause = f"{type(error).__name__}: {error}"
        reason = f"the search index in {folder} failed ({cause}): try again"
        raise Fault(500, "search_engine_exception", reason) from error


class FieldTotals(NamedTuple):
    """Lucene's statistics of a text field, over the documents with a term in it, including deleted ones.

    Attributes:
        documents: the number of documents.
        tokens: the total number of terms in the field, with repetitions.
        pairs: the total number of distinct terms of each document.
    """

    documents: int
    tokens: int
    pairs: int


def encode_length(length: int) -> int:
    """Return a length as Lucene stores it in a byte: exact up to 24, and with four significant bits of the excess."""
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
            lengths, distinct = self._count_numbers(path + LENGTH), self._count_numbers(path + DISTINCT)
            self._totals[path] = FieldTotals(
                documents=sum(lengths.values()),
                tokens=sum(number * count for number, count in lengths.items()),
                pairs=sum(number * count for number, count in distinct.items()),
            )
        return self._totals[path]

    def _count_numbers(self, prefix: str) -> dict[int, int]:
        """Return number -> the number of documents with a token of this prefix and number in `PRESENT`."""
        with translate_tantivy_errors(self._folder):
            tokens = self._searcher.terms_with_prefix(PRESENT, prefix)
            return {int(token[len(prefix) :]): count for token, count in tokens}

    @property
    def num_docs(self) -> int:
        return int(self._searcher.num_docs)

    def docs(self, addresses: Iterable[tantivy.DocAddress]) -> list[tantivy.Document]:
        """Return stored documents."""
        with translate_tantivy_errors(self._folder):
            return [self._searcher.doc(address) for address in addresses]

    def __getattr__(self, name: str) -> Any:
        """Return a method of tantivy's searcher that raises faults."""
        method = getattr(self._searcher, name)

        def guarded(*args: Any, **options: Any) -> Any:
            with translate_tantivy_errors(self._folder):
                return method(*args, **options)

        return guarded


class Shard:
    """A tantivy index in its own folder.

    Args:
        folder: the folder, which is created if it is missing. None for an index in memory.
        layout: field path -> the type of its column.

    Attributes:
        columns: field path -> the name of its column.
        frequency_columns: path of a text field -> the name of its column with terms, frequencies and lengths.
        length_columns: path of a text field -> the name of its column with lengths.

    Raises:
        ValueError, OSError: the files in the folder are damaged.
    """

    def __init__(self, folder: Path | None, layout: Mapping[str, str]) -> None:
        self.folder = folder
        self.layout = dict(layout)
        self.columns = {path: f"f{number}" for number, path in enumerate(layout)}
        self.frequency_columns = {path: f"{name}_exact" for path, name in self.columns.items()}
        self.length_columns = {path: f"{name}_length" for path, name in self.columns.items()}
        self.schema = self._build_schema()
        self._index = self._open(folder)
        self._index.config_reader("manual")
        splitter = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.regex(f"[^{SEPARATOR}]+"))
        self._index.register_tokenizer("terms", splitter.filter(tantivy.Filter.custom_stopword([GAP])).build())
        self._writer: tantivy.IndexWriter | None = None
        self.reload()

    def _open(self, folder: Path | None) -> tantivy.Index:
        if folder is None:
            return tantivy.Index(self.schema)
        if (folder / "meta.json").exists():
            return tantivy.Index.open(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        return tantivy.Index(self.schema, path=str(folder))

    def _build_schema(self) -> tantivy.Schema:
        builder = tantivy.SchemaBuilder()
        builder.add_text_field(ID, stored=True, tokenizer_name="raw", index_option="basic")
        builder.add_bytes_field(SOURCE, stored=True)
        builder.add_unsigned_field(SEQ, indexed=True, fast=True)
        builder.add_text_field(PRESENT, tokenizer_name="raw", index_option="basic")
        for path, column in self.layout.items():
            name = self.columns[path]
            if column == "text":
                builder.add_text_field(name, tokenizer_name="terms", index_option="position")
                builder.add_text_field(self.frequency_columns[path], tokenizer_name="whitespace", index_option="basic")
                builder.add_unsigned_field(self.length_columns[path], fast=True)
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
    def sequence_numbers(searcher: CheckedSearcher, addresses: list[tantivy.DocAddress]) -> list[int]:
        """Return the sequence numbers of the documents at these addresses."""
        return [int(number or 0) for number in searcher.fast_field_values(SEQ, addresses)]

    @property
    def has_writer(self) -> bool:
        """Whether the writer is open."""
        return self._writer is not None

    def open_writer(self) -> None:
        """Open the writer if it is closed; uncommitted changes of an earlier writer are lost."""
        if self._writer is None:
            # One thread: documents keep the order of their sequence numbers within a segment.
            self._writer = self._index.writer(WRITER_BYTES, num_threads=1)

    def document(
        self, row: StoredDocument, fields: Mapping[str, list[Any]], analyzer: Callable[[str], Analyzer]
    ) -> tantivy.Document:
        """Return a document for `add`; ``fields`` has its values by field path."""
        assert row.source is not None
        document = tantivy.Document()
        document.add_text(ID, row.doc_id)
        document.add_bytes(SOURCE, row.source.encode())
        document.add_unsigned(SEQ, row.seq)
        document.add_text(PRESENT, ALL_DOCUMENTS)
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
        """Add the terms of a text field's values, and the tokens from which Lucene's score is computed."""
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
        document.add_text(self.columns[path], SEPARATOR.join(terms))
        tokens = [f"{term}{JOIN}{count}{JOIN}{encoded_length}" for term, count in counts.items()]
        document.add_text(self.frequency_columns[path], " ".join(tokens))
        document.add_unsigned(self.length_columns[path], encoded_length)

    def _add_values(self, document: tantivy.Document, path: str, values: list[Any]) -> None:
        """Add values in ascending order, because an ascending sort uses the smallest."""
        adders: dict[str, Callable[[str, Any], None]] = {
            "keyword": document.add_text,
            "long": document.add_integer,
            "double": document.add_float,
        }
        add = adders[self.layout[path]]
        for value in sorted(set(values)):
            add(self.columns[path], value)

    def delete(self, doc_ids: Iterable[str]) -> None:
        """Delete documents by id; unknown ids are ignored."""
        assert self._writer is not None
        for doc_id in doc_ids:
            self._writer.delete_documents_by_term(ID, doc_id)

    def commit(self) -> None:
        """Make additions and deletions durable here, and visible after ``reload``."""
        assert self._writer is not None
        self._writer.commit()

    def close_writer(self, *, wait: bool = True) -> None:
        """Close the writer; uncommitted changes are lost. With ``wait``, return when its merges have ended."""
        writer, self._writer = self._writer, None
        if writer is not None and wait:
            with translate_tantivy_errors(self.folder):
                writer.wait_merging_threads()
