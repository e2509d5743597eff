"""``osrerank init``: look at an index and this machine, and write the settings file that fits them."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click

from osrerank.cli.options import DURATION, client_of
from osrerank.cli.settings_file import refuse_existing, settings_text
from osrerank.retrieval.fields import NamedFields, SearchFields, caller_names, resolved
from osrerank.retrieval.mapping import leaves_by_index
from osrerank.retrieval.samples import sampled_groups
from osrerank.scoring.names import MULTILINGUAL
from osrerank.scoring.registry import as_scorer, load
from osrerank.settings import SETTINGS_FILE
from osrerank.stages.language_guard import is_installed

SAMPLE = 20
INTERACTIVE_MS = 1000.0
SHARE = 0.5
"""Of the deadline that scoring the whole depth should take, since machines are busy at times."""
STEP, LEAST, MOST = 10, 10, 100


class Speed(NamedTuple):
    """How fast this machine scores an index's documents."""

    documents: int
    pairs_per_s: float


class Written(NamedTuple):
    """The options that the file gets for every index, and a note on why."""

    options: dict[str, Any]
    note: str


@click.command()
@click.option("--index", "-i", help="Index to look at: its text fields, and the lengths of its documents.")
@click.option(
    "--deadline-ms",
    type=DURATION,
    help="Time for a search.  [default: not written; 1000 for a cross-encoder or without stored vectors]",
)
@click.option("--build", is_flag=True, help="Also build the vectors that the documents of --index lack.")
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
def init(
    context: click.Context, /, *, index: str | None, deadline_ms: float | None, build: bool, output: Path, force: bool
) -> None:
    """Write osrerank.toml with text fields, model and depth, and say how to build missing vectors.

    \b
    osrerank --url https://localhost:9200 init --index articles --build

    Of the fields that the mapping has as text, those are written whose values, in a sample of documents, are titles or
    prose. `connect` and the command line read ./osrerank.toml, or the one in the user's configuration folder, and say
    which. If the model does not read the documents' language, the index gets osrerank/e5-multilingual, where it is
    installed.
    The depth is 100 if document vectors are stored. With a cross-encoder, or with OSRERANK_VECTORS=off, it is what this
    machine scores in half of the deadline, at most 100.
    """
    if build and index is None:
        raise click.UsageError("--build needs an index: name it with --index")
    refuse_existing(output, force=force)
    with closing(client_of(context)) as client:
        found = _found(client, index) if index else SearchFields()
        texts = _sample(client, index, found) if index else []
        model = _told_languages(client, index, texts) if index else ""
    with closing(client_of(context, model=model or None)) as client:
        keeps = _keeps_vectors(client, index)
        written = _with_vectors(deadline_ms) if keeps else _read_anew(client, index, texts, deadline_ms)
        fields = {"query_fields": found.searched, "fields": found.read} if texts and not found.groups else {}
        by_index = {index: fields} if index and fields else {}
        notes = f"Made by osrerank init: {written.note}."
        models = {index: model} if index and model else {}
        output.write_text(settings_text(notes, written.options, by_index, models), encoding="utf-8")
        listed = ", ".join(f"{name} {value:g}" for name, value in written.options.items())
        click.echo(f"{output}: {listed}; {written.note}")
        if index:
            _tell_fields(index, found, is_written=bool(fields), has_texts=bool(texts))
        if index and texts and keeps:
            _vectors_of(client, index, build=build)


def _found(client: Any, index: str) -> SearchFields:
    """Return the fields that the settings name, or else those of the mapping whose sampled values are texts."""
    options = client.searcher.defaults.of(index)
    wanted = NamedFields(caller_names(options.query_fields), caller_names(options.fields))
    every = leaves_by_index(client.indices.get_mapping(index=index))
    pipeline = client.search_pipeline_of(index)  # one that ranks would be paid for, or refuse the request
    parts = () if pipeline.obstacle else client.result_of(sampled_groups(index, every, pipeline.replacement), index)
    return resolved(every, parts, wanted) if parts else client.fields_of(index)


def _keeps_vectors(client: Any, index: str | None) -> bool:
    """Return whether each document is encoded only once: by a bi-encoder whose vectors are stored."""
    settings = client.searcher.service.settings
    if settings.vectors == "off":
        return False
    with client.searcher.serving(index) if index else nullcontext(client.searcher.service) as service:
        defaults = client.searcher.defaults
        return service.vectors_of(defaults.of(index) if index else defaults.base) is not None


def _with_vectors(deadline_ms: float | None) -> Written:
    deadline = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
    return Written({"depth": MOST, **deadline}, "each document is encoded once, and its vector stored")


def _read_anew(client: Any, index: str | None, texts: Sequence[str], deadline_ms: float | None) -> Written:
    """Return the depth for a model that reads the candidates at every search, by its speed here."""
    speed, time_ms = _measure(client, texts), INTERACTIVE_MS if deadline_ms is None else deadline_ms
    of = f"documents of {index}" if texts else "invented documents of 100 words"
    note = f"{speed.documents} {of} were scored at {speed.pairs_per_s:.0f} a second here"
    return Written({"depth": _depth(speed.pairs_per_s, time_ms), "deadline_ms": time_ms}, note)


def _tell_fields(index: str, found: SearchFields, *, is_written: bool, has_texts: bool) -> None:
    for warning in (*found.warnings, *found.complaints(None)):
        click.echo(f"{index}: {warning}", err=True)
    why = "its indices have different fields" if has_texts else "there are no documents with text yet"
    left = "" if is_written else f"; not written, so that each search looks again: {why}"
    others = f"; left out: {', '.join(found.left_out)}" if found.left_out else ""
    click.echo(f"{index}: searched: {', '.join(found.searched)}; read: {', '.join(found.read)}{others}{left}")


def _vectors_of(client: Any, index: str, *, build: bool) -> None:
    """Say how many vectors an index lacks and which command builds them; build them if asked."""
    from osrerank.indexing.build import build_on_screen
    from osrerank.indexing.estimate import estimate

    click.echo(str(estimate(client, index)))
    if build:
        click.echo(f"{index}: {build_on_screen(client, index)}")


def _measure(client: Any, found: Sequence[str]) -> Speed:
    """Score a sample of documents twice, to warm up and to take the time; vectors are not stored."""
    texts = list(found) or [" ".join(["some words of an invented document"] * 17)] * SAMPLE
    from osrerank.scoring.card import POINTWISE

    scorer = as_scorer(load(client.searcher.service.settings, POINTWISE))
    tuples = [(at,) for at in range(len(texts))]
    with closing(scorer):
        scorer.score("a question of five words", texts, tuples)
        began = time.perf_counter()
        scorer.score("another question of six words", texts, tuples)
        return Speed(len(texts), len(texts) / (time.perf_counter() - began))


def _sample(client: Any, index: str, fields: SearchFields) -> list[str]:
    """Return the texts of some documents of an index, as a model reads them."""
    from osrerank.indexing.documents import sample_texts

    return sample_texts(client, index, fields, SAMPLE)


def _told_languages(client: Any, index: str, texts: Sequence[str]) -> str:
    """Say in which languages an index's documents are; return the model that is better than its own, "" if none is."""
    from osrerank.indexing.languages import Languages

    languages = Languages.of(client, index, texts)
    for sentence in languages.sentences:
        click.echo(f"{index}: {sentence}")
    if not languages.needs_multilingual or not is_installed():
        return ""
    click.echo(f"{index}: the file names {MULTILINGUAL} as its model")
    return MULTILINGUAL


def _depth(pairs_per_s: float, deadline_ms: float) -> int:
    """Return how many candidates are scored in a share of the deadline, in steps of ten."""
    count = pairs_per_s * SHARE * deadline_ms / 1000
    return int(min(MOST, max(LEAST, count // STEP * STEP)))
