"""The commands `osrerank index` and `osrerank download`. The command `osrerank convert` is in `convert_cli`.

The commands import what they need when they run, so that the help is quick.
"""

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from osrerank.client import connect
from osrerank_loaders.collections.registry import LOADERS
from osrerank_loaders.convert_cli import convert
from osrerank_loaders.download import read_catalogue
from osrerank_loaders.load.mapping import ENGLISH, LANGUAGES

__all__ = ["convert", "download", "index"]


@click.command()
@click.argument("loader", type=click.Choice(sorted(LOADERS)))
@click.argument("paths", nargs=-1, required=True)
@click.option("--index", "index_name", required=True, help="Name of the index.")
@click.option("--url", help="Search engine: http(s)://host:port or embedded:FOLDER.  [env: OSRERANK_URL]")
@click.option("--k1", type=click.FloatRange(min=0), help="BM25 k1.  [default: the collection's published value]")
@click.option("--b", type=click.FloatRange(0, 1), help="BM25 b.  [default: the collection's published value]")
@click.option(
    "--shards",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of shards. Each computes scores from its own term statistics.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=0),
    help="Replicas once the load is complete.  [default: 1 if the cluster has a second node, else 0]",
)
@click.option(
    "--contents",
    is_flag=True,
    help="Also index the title, the text and any URL in one field, contents, as Anserini does.",
)
@click.option(
    "--language",
    type=click.Choice(LANGUAGES),
    default=ENGLISH,
    show_default=True,
    metavar="LANGUAGE",
    help=f"Language of the analyzer: {', '.join(LANGUAGES)}; the embedded engine does not support cjk.",
)
@click.option("--recreate", is_flag=True, help="Delete an existing index of this name first.")
@click.option("--force-merge", is_flag=True, help="Merge the index into one segment at the end.")
@click.option(
    "--skip-bad", type=click.IntRange(min=0), default=0, show_default=True, help="Number of bad records to tolerate."
)
@click.option("--repair-encoding", is_flag=True, help="Undo double-encoded UTF-8 (MS MARCO v1).")
@click.option(
    "--bulk-mb", type=click.FloatRange(0.01, 90), default=4.0, show_default=True, help="Size of a bulk request."
)
@click.option("--in-flight", type=click.IntRange(1, 64), default=4, show_default=True, help="Bulk requests at a time.")
@click.option(
    "--give-up-s",
    type=click.FloatRange(min=0),
    default=300.0,
    show_default=True,
    help="Stop if the server does not respond for this long.",
)
@click.option(
    "--checkpoint-s", type=click.FloatRange(min=0), default=5.0, show_default=True, help="Time between checkpoints."
)
@click.option("--vectors", is_flag=True, help="Then compute the document vectors, as osrerank vectors build does.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.pass_obj
def index(global_options: dict[str, Any] | None, /, **options: Any) -> None:
    """Load a published collection into an index, from files, folders, archives, or - for standard input.

    Compressed files (gz, xz, zst, bz2) and tar archives need not be unpacked. To resume an interrupted load, run the
    same command again.
    """
    from osrerank_loaders.command import load_collection

    global_options = global_options or {}
    url = options["url"] or global_options.get("url")
    as_json = options["as_json"] or global_options.get("as_json")
    summary = load_collection({**options, "url": url})
    if not as_json:
        for note in summary.notes:
            click.echo(note, err=True)
        click.echo(str(summary))
    build_result = None
    if options["vectors"]:
        from osrerank.indexing.build import build_on_screen

        with closing(connect(url, model=global_options.get("model"))) as client:
            build_result = build_on_screen(client, options["index_name"])
    if as_json:
        output = asdict(summary)
        if build_result:
            output["vectors"] = asdict(build_result)
        click.echo(json.dumps(output))
    elif build_result:
        click.echo(f"vectors: {build_result}")


@click.command(epilog=f"Collections: {', '.join(sorted(read_catalogue()))}.")
@click.argument("collection")
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the files.  [default: the collection's name]",
)
@click.option("--only", multiple=True, help="Download only this file; repeatable.")
@click.option(
    "--catalogue",
    type=click.Path(dir_okay=False, path_type=Path),
    help="JSON catalogue to use instead of the package's, for a mirror.",
)
def download(collection: str, output: Path | None, only: tuple[str, ...], catalogue: Path | None) -> None:
    """Download a collection's official files, and check their sizes and MD5s; the same command resumes a download.

    A file without a published MD5 cannot be verified. Its SHA-256 is printed instead.
    """
    from osrerank_loaders.command import download_collection

    for path, note in download_collection(collection, output or Path(collection), only, catalogue):
        click.echo(path)
        if note:
            click.echo(note, err=True)
