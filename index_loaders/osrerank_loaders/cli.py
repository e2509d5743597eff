"""The commands `index` and `download`, and `convert` from its own file: glue only."""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osrerank.client import connect
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.convert_cli import convert
from osrerank_loaders.download import published
from osrerank_loaders.load.mapping import ENGLISH, LANGUAGES

__all__ = ["convert", "download", "index"]


@click.command()
@click.argument("loader", type=click.Choice(sorted(LOADERS)))
@click.argument("paths", nargs=-1, required=True)
@click.option("--index", "index_name", required=True, help="Name of the index.")
@click.option("--url", help="Index: http(s)://host:port or embedded:FOLDER.  [env: OSRERANK_URL]")
@click.option("--k1", type=click.FloatRange(min=0), help="BM25 k1; as published for the collection when absent.")
@click.option("--b", type=click.FloatRange(0, 1), help="BM25 b; as published for the collection when absent.")
@click.option("--shards", type=click.IntRange(min=1), default=1, show_default=True, help="Scores differ per shard.")
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    help="Replicas after loading.  [default: 1, if the cluster has a node for it]",
)
@click.option("--contents", is_flag=True, help="Also index title and text (and URL) as one field, as Anserini does.")
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    default=ENGLISH,
    show_default=True,
    metavar="LANGUAGE",
    help=f"Language that the texts are analysed in: {', '.join(LANGUAGES)}; cjk is OpenSearch's alone.",
)
@click.option("--recreate", is_flag=True, help="Delete an index of that name first.")
@click.option("--force-merge", is_flag=True, help="Merge to one segment at the end.")
@click.option("--skip-bad", type=click.IntRange(min=0), default=0, show_default=True, help="Bad records to tolerate.")
@click.option("--repair-encoding", is_flag=True, help="Undo double-encoded UTF-8 (MS MARCO v1).")
@click.option("--bulk-mb", type=click.FloatRange(0.01, 90), default=4.0, show_default=True, help="Size of a request.")
@click.option("--in-flight", type=click.IntRange(1, 64), default=4, show_default=True, help="Requests at a time.")
@click.option(
    "--give-up-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Stop if the server does not answer for this long.",
)
@click.option(
    "--checkpoint-s", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Time between checkpoints."
)
@click.option("--vectors", is_flag=True, help="Then compute the document vectors: osrerank vectors build.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_obj
def index(defaults: dict[str, Any], /, **options: Any) -> None:
    """Load a published collection: files, folders, archives, or - for standard input.

    Compressed files (gz, xz, zst, bz2) and tar archives are read as they are. The same command resumes an interrupted
    load.
    """
    from osrerank_loaders.command import load_collection

    shared = defaults or {}
    url = options["url"] or shared.get("url")
    summary = load_collection(connect, {**options, "url": url})
    as_json = options["as_json"] or shared.get("as_json")
    for note in () if as_json else summary.notes:
        click.echo(note, err=True)
    if not as_json:
        click.echo(str(summary))
    built = None
    if options["vectors"]:
        from osrerank.indexing.build import build_on_screen

        with closing(connect(url, model=shared.get("model"))) as client:
            built = build_on_screen(client, options["index_name"])
    if as_json:
        click.echo(json.dumps({**asdict(summary), **({"vectors": asdict(built)} if built else {})}))
    elif built:
        click.echo(f"vectors: {built}")


@click.command(epilog=f"Collections: {', '.join(sorted(published()))}.")
@click.argument("collection")
@click.option(
    "--output", type=click.Path(file_okay=False, path_type=Path), help="Folder; the collection's name when absent."
)
@click.option("--only", multiple=True, help="Only files of this name; may be repeated.")
@click.option(
    "--catalogue",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON list of files in place of the package's, for a mirror.",
)
def download(collection: str, output: Path | None, only: tuple[str, ...], catalogue: Path | None) -> None:
    """Download a collection's official files; resume interrupted downloads, check size and MD5.

    A file whose MD5 is not published is not verified: its SHA-256 is printed.
    """
    from osrerank_loaders.command import download_collection

    for path, note in download_collection(collection, output or Path(collection), only, catalogue):
        click.echo(path)
        if note:
            click.echo(note, err=True)
