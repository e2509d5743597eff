"""Read SQuAD as a retrieval collection: each paragraph is a document, and the questions about it are queries.

Rajpurkar, Zhang, Lopyrev, Liang: SQuAD, 2016, arXiv:1606.05250.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from osrerank._bad_value import describe_bad_value
from osrerank.errors import CorpusFormatError
from osrerank.formats.common_layout import Judgment
from osrerank.formats.lines import explain_invalid_id, read_json_file
from osrerank.types import Document, Query


class Paragraph(NamedTuple):
    """A paragraph as a document, and the questions about it as queries, to which the document is relevant."""

    document: Document
    queries: tuple[Query, ...]

    @property
    def judgments(self) -> Iterator[Judgment]:
        """For each query, the judgment that the document is relevant."""
        return (Judgment(query.query_id, self.document.doc_id, relevance=1) for query in self.queries)


def read_squad(path: Path) -> Iterator[Paragraph]:
    """Read a SQuAD JSON file. A document's id is ``TITLE-N``: the article's title and the paragraph's number, from 0.

    Raises:
        CorpusFormatError: the file is not a SQuAD file, or it contains an id that TREC files cannot contain.
        FormatError: the file is in UTF-16, truncated or damaged.
    """
    try:
        articles = read_json_file(path)["data"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusFormatError(f"{path} is not a SQuAD file: {describe_bad_value(error)}", file=str(path)) from error
    for article in articles:
        for number, paragraph in enumerate(article["paragraphs"]):
            converted = _convert_paragraph(article["title"], number, paragraph)
            reasons = [explain_invalid_id(converted.document.doc_id)]  # "" for a valid id
            reasons += [explain_invalid_id(query.query_id, is_query=True) for query in converted.queries]
            for reason in filter(None, reasons):
                raise CorpusFormatError(f"{path}: {reason}", file=str(path))
            yield converted


def _convert_paragraph(title: str, number: int, paragraph: dict[str, Any]) -> Paragraph:
    document = Document(f"{title}-{number}", paragraph["context"], title.replace("_", " "))
    return Paragraph(document, tuple(Query(qa["id"], qa["question"]) for qa in paragraph["qas"]))
