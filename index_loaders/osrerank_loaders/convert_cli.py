"""The command `osrerank convert`, which writes published files in the formats that osrerank reads.

The commands import what they need when they run, so that the help is quick.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click

from osrerank.errors import CorpusFormatError, FormatError
from osrerank.types import Document
from osrerank_loaders.collections.base import Record
from osrerank_loaders.collections.registry import LOADERS

Item = TypeVar("Item")
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_paths_argument = click.argument("paths", nargs=-1, required=True)
_output_option = click.option("--output", "-o", required=True, type=_FILE, help="File to write.")
_level_option = click.option(
    "--level",
    type=click.Choice(["hierarchical", "toplevel", "article"]),
    default="hierarchical",
    show_default=True,
    help="Queries are all sections, first-level sections, or pages.",
)


@click.group()
def convert() -> None:
    """Convert published files to corpus.jsonl, queries.tsv, qrels.txt, or candidates for `osrerank rerank`."""


@convert.command()
@click.argument("loader", type=click.Choice(sorted(LOADERS)))
@_paths_argument
@click.option("--repair-encoding", is_flag=True, help="Undo double-encoded UTF-8 (MS MARCO v1).")
@_output_option
def corpus(loader: str, paths: tuple[str, ...], output: Path, *, repair_encoding: bool) -> None:
    """Write any collection as corpus.jsonl."""
    from osrerank.formats.common_layout import write_corpus
    from osrerank_loaders.load.encoding import EncodingRepair

    repair = EncodingRepair() if repair_encoding else None
    _report(write_corpus(_read_documents(loader, paths, repair), output), "documents", output)
    if repair and repair.note:
        click.echo(repair.note, err=True)


@convert.command()
@_paths_argument
@click.option("--field", type=click.Choice(["title", "desc", "narr"]), default="title", show_default=True)
@_output_option
def queries(paths: tuple[str, ...], field: Any, output: Path) -> None:
    """Write MS MARCO or BEIR queries, TREC topics, or a list of TREC-CAR's query ids as queries.tsv."""
    from osrerank.formats.common_layout import write_queries
    from osrerank.formats.topics import read_queries

    _report(write_queries(read_queries(paths, field=field), output), "queries", output)


@convert.command()
@_paths_argument
@_output_option
def qrels(paths: tuple[str, ...], output: Path) -> None:
    """Write MS MARCO, NIST or BEIR judgments as qrels.txt."""
    from osrerank.formats.common_layout import flatten_qrels, write_qrels
    from osrerank.formats.trec import read_qrels

    _report(write_qrels(flatten_qrels(read_qrels(paths)), output), "judgments", output)


@convert.command()
@_paths_argument
@click.option("--queries", "queries_path", help="Queries for a TREC run (such as a top-100 file).")
@click.option("--collection", nargs=2, metavar="LOADER PATH", help="Collection with the documents of a TREC run.")
@_output_option
def candidates(
    paths: tuple[str, ...], queries_path: str | None, collection: tuple[str, str] | None, output: Path
) -> None:
    """Write an MS MARCO top-1000 file, or a TREC run with its queries and collection, as candidates.jsonl."""
    from osrerank.formats.topics import read_queries
    from osrerank_loaders.candidates import join_run_and_texts, read_top1000, write_candidates

    if (queries_path is None) != (collection is None):
        reason = "pass both for a TREC run, and neither for a top-1000 file"
        raise click.UsageError(f"--queries and --collection go together: {reason}")
    if queries_path is None or collection is None:
        rows = read_top1000(paths)
    else:
        texts = {query.query_id: query.text for query in read_queries([queries_path])}
        loader, path = collection
        rows = join_run_and_texts(paths, texts, _read_documents(loader, (path,)))
    _report(write_candidates(rows, output), "queries", output)


@convert.command("trec-car-queries")
@_paths_argument
@_level_option
@click.option(
    "--style",
    type=click.Choice(["headings", "dl4marco"]),
    default="headings",
    show_default=True,
    help="Queries consist of headings, or of ids as text, as dl4marco's do (Nogueira and Cho, 2019).",
)
@click.option("--pages", is_flag=True, help="With --level hierarchical, also write every page as a query.")
@_output_option
def trec_car_queries(paths: tuple[str, ...], level: Any, style: Any, *, pages: bool, output: Path) -> None:
    """Write TREC-CAR's queries, from outlines or pages, as queries.tsv.

    With --level hierarchical, a page with paragraphs before its first heading is also a query, as in v2.0's judgments.
    Outlines have no paragraphs: for v2.0, pass page files instead, or set --pages.
    """
    from osrerank.formats.common_layout import write_queries
    from osrerank_loaders.collections import trec_car_topics as car

    derived = car.derive_queries(car.read_sections(paths), level, style=style, pages=pages)
    reason = "there are no queries of this level; pass TREC-CAR's outlines or pages"
    _report(write_queries(_require_items(derived, paths, reason), output), "queries", output)


@convert.command("trec-car-qrels")
@_paths_argument
@_level_option
@_output_option
def trec_car_qrels(paths: tuple[str, ...], level: Any, output: Path) -> None:
    """Write TREC-CAR's automatic judgments, from pages, as qrels.txt."""
    from osrerank.formats.common_layout import write_qrels
    from osrerank_loaders.collections import trec_car_topics as car

    derived = car.derive_judgments(car.read_sections(paths), level)
    reason = "there are no judgments of this level; pass TREC-CAR's pages, because outlines have no paragraphs"
    _report(write_qrels(_require_items(derived, paths, reason), output), "judgments", output)


@convert.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", "-o", required=True, type=_FOLDER, help="Folder for corpus.jsonl, queries.tsv, qrels.txt.")
def squad(path: Path, output: Path) -> None:
    """Write SQuAD as a collection: its paragraphs, its questions, and the paragraph that answers each."""
    from osrerank.formats import common_layout
    from osrerank_loaders.collections.squad import read_squad

    output.mkdir(parents=True, exist_ok=True)
    paragraphs = list(read_squad(path))
    questions = (query for paragraph in paragraphs for query in paragraph.queries)
    judgments = (judgment for paragraph in paragraphs for judgment in paragraph.judgments)
    documents = (paragraph.document for paragraph in paragraphs)
    _report(common_layout.write_corpus(documents, output / "corpus.jsonl"), "documents", output / "corpus.jsonl")
    _report(common_layout.write_queries(questions, output / "queries.tsv"), "queries", output / "queries.tsv")
    _report(common_layout.write_qrels(judgments, output / "qrels.txt"), "judgments", output / "qrels.txt")


def _read_documents(
    loader_name: str, paths: tuple[str, ...], convert_record: Callable[[Record], Record] | None = None
) -> Iterator[Document]:
    """Yield a collection's documents. If a record is bad, raise its error.

    ``convert_record`` is applied to each record, for instance to repair its encoding.
    """
    from osrerank.formats.sources import list_files, open_sources
    from osrerank_loaders.collections.base import read_records

    loader = LOADERS[loader_name]
    records = read_records(loader, open_sources(list_files(paths, loader.files), loader.files))
    if convert_record:
        records = map(convert_record, records)
    for record in records:
        if isinstance(record, FormatError):
            raise record
        yield record


def _require_items(items: Iterable[Item], paths: tuple[str, ...], reason: str) -> Iterator[Item]:
    """Yield items, or raise an error with this reason if there are none."""
    count = 0
    for count, item in enumerate(items, start=1):  # noqa: B007 - the last number is the count
        yield item
    if not count:
        raise CorpusFormatError(f"{', '.join(paths)}: {reason}")


def _report(count: int, unit: str, path: Path) -> None:
    click.echo(f"{count:,} {unit} in {path}", err=True)
