"""``osrerank init``: look at an index and this machine, and write the settings file that fits them."""

import time
from collections.abc import Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click

from osrerank.cli.options import DURATION, client_of
from osrerank.cli.settings_file import refuse_existing, settings_text
from osrerank.response import parse
from osrerank.retrieval.fields import Fields
from osrerank.scoring.registry import as_scorer, load
from osrerank.settings import SETTINGS_FILE
from osrerank.types import Query

SAMPLE = 20
INTERACTIVE_MS = 1000.0
SHARE = 0.5
"""Of the deadline that scoring the whole depth should take, since machines are busy at times."""
STEP, LEAST, MOST = 10, 10, 100


class Speed(NamedTuple):
    """How fast this machine scores an index's documents."""

    documents: int
    pairs_per_s: float


@click.command()
@click.option("--index", "-i", help="Index to look at: its text fields, and the lengths of its documents.")
@click.option("--deadline-ms", type=DURATION, default=INTERACTIVE_MS, show_default=True, help="Time for a search.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path, dir_okay=False),
    default=SETTINGS_FILE,
    show_default=True,
    help="File to write.",
)
@click.option("--force", is_flag=True, help="Write over the file if it exists.")
@click.pass_context
def init(context: click.Context, /, *, index: str | None, deadline_ms: float, output: Path, force: bool) -> None:
    """Write osrerank.toml: text fields, depth and a deadline for interactive use.

    \b
    osrerank --url https://localhost:9200 init --index articles

    `connect` and the command line read ./osrerank.toml, or the one in the user's configuration folder, and say which.
    The depth is what this machine scores in half of the deadline, at most 100.
    """
    refuse_existing(output, force=force)
    client = client_of(context)
    try:
        found = client.fields_of(index) if index else Fields()
        texts = _sample(client, index, found) if index else []
        speed = _measure(client, texts)
    finally:
        client.close()
    depth = _depth(speed.pairs_per_s, deadline_ms)
    place = f"documents of {index}" if texts else "invented documents of 100 words"
    note = f"{speed.documents} {place} were scored at {speed.pairs_per_s:.0f} a second here"
    fields = {"query_fields": found.searched, "fields": found.read} if texts and not found.parts else {}
    by_index = {index: fields} if index and fields else {}
    notes, base = f"Made by osrerank init: {note}.", {"depth": depth, "deadline_ms": deadline_ms}
    output.write_text(settings_text(notes, base, by_index), encoding="utf-8")
    click.echo(f"{output}: depth {depth}, deadline {deadline_ms:g} ms; {note}")
    for warning in (*found.warnings, *found.complaints(None)):
        click.echo(f"{index}: {warning}", err=True)
    if index:
        left = (
            ""
            if fields
            else "; not written, so that each search looks again: "
            + ("its indices have different fields" if texts else "there are no documents with text yet")
        )
        click.echo(f"{index}: searched: {', '.join(found.searched)}; read: {', '.join(found.read)}{left}")


def _measure(client: Any, found: Sequence[str]) -> Speed:
    """Score a sample of documents once to warm up and once with a watch; document vectors are computed each time."""
    texts = list(found) or [" ".join(["some words of an invented document"] * 17)] * SAMPLE
    from osrerank.scoring.card import POINTWISE  # noqa: PLC0415 - numpy

    scorer = as_scorer(load(client.searcher.service.settings, POINTWISE))
    tuples = [(place,) for place in range(len(texts))]
    with closing(scorer):
        scorer.score("a question of five words", texts, tuples)
        began = time.perf_counter()
        scorer.score("another question of six words", texts, tuples)
        return Speed(len(texts), len(texts) / (time.perf_counter() - began))


def _sample(client: Any, index: str, fields: Fields) -> list[str]:
    """Return the texts of some documents of an index, as a model reads them."""
    from osrerank.indexing.documents import documents_of  # noqa: PLC0415 - keeps the command's help quick

    hits = list(islice(documents_of(client, index, fields), SAMPLE))
    ranking = parse({"hits": {"hits": hits}}, Query("init", "init"), fields.read, by_index=fields.by_index(None))
    return [candidate.text for candidate in ranking.candidates if candidate.text]


def _depth(pairs_per_s: float, deadline_ms: float) -> int:
    """Return how many candidates are scored in a share of the deadline, in steps of ten."""
    count = pairs_per_s * SHARE * deadline_ms / 1000
    return int(min(MOST, max(LEAST, count // STEP * STEP)))
