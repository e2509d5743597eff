"""``osrerank init``: look at an index and this machine, and write the settings file that fits them."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import click

from osrerank.cli.options import DURATION, open_client
from osrerank.cli.settings_file import refuse_existing, settings_text
from osrerank.retrieval.fields import NamedFields, SearchFields, caller_names, resolve_fields
from osrerank.retrieval.mapping import read_leaves_by_index
from osrerank.retrieval.samples import sample_groups
from osrerank.scoring.names import MULTILINGUAL
from osrerank.scoring.registry import as_scorer, load
from osrerank.settings import SETTINGS_FILE
from osrerank.stages.language_guard import is_installed

SAMPLE_DOCUMENTS = 20
INTERACTIVE_MS = 1000.0
SCORING_SHARE = 0.5
"""Share of the deadline that scoring the whole depth should take; the rest allows for a busy machine."""
DEPTH_STEP, MIN_DEPTH, MAX_DEPTH = 10, 10, 100


class Speed(NamedTuple):
    """How fast this machine scores an index's documents."""

    documents: int
    pairs_per_s: float


class FileOptions(NamedTuple):
    """The options in the file for every index, and a note that explains them."""

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

    A text field of the mapping is written if its values, in a sample of documents, are titles or prose. `connect` and
    the command line read ./osrerank.toml, or the file in the user's configuration folder, and say which one. If the
    model does not read the documents' language, the index gets osrerank/e5-multilingual, if it is installed.
    The depth is 100 if document vectors are stored. With a cross-encoder, or with OSRERANK_VECTORS=off, it is the
    number of documents that this machine scores in half of the deadline, at most 100.
    """
    if build and index is None:
        raise click.UsageError("--build needs an index: name it with --index")
    refuse_existing(output, force=force)
    with closing(open_client(context)) as client:
        found_fields = _find_fields(client, index) if index else SearchFields()
        texts = _sample(client, index, found_fields) if index else []
        model = _choose_model(client, index, texts) if index else ""
    with closing(open_client(context, model=model or None)) as client:
        stores_vectors = _stores_vectors(client, index)
        if stores_vectors:
            file_options = _with_vectors(deadline_ms)
        else:
            file_options = _without_vectors(client, index, texts, deadline_ms)
        is_written = bool(texts) and not found_fields.groups
        index_fields = {"query_fields": found_fields.searched, "fields": found_fields.read} if is_written else {}
        options_by_index = {index: index_fields} if index and index_fields else {}
        notes = f"Made by osrerank init: {file_options.note}."
        models = {index: model} if index and model else {}
        output.write_text(settings_text(notes, file_options.options, options_by_index, models), encoding="utf-8")
        listing = ", ".join(f"{name} {value:g}" for name, value in file_options.options.items())
        click.echo(f"{output}: {listing}; {file_options.note}")
        if index:
            _show_fields(index, found_fields, is_written=bool(index_fields), has_texts=bool(texts))
        if index and texts and stores_vectors:
            _build_vectors(client, index, build=build)


def _find_fields(client: Any, index: str) -> SearchFields:
    """Return the fields that the settings name, or else the fields of the mapping whose sampled values are texts."""
    options = client.searcher.defaults.options_for(index)
    named = NamedFields(caller_names(options.query_fields), caller_names(options.fields))
    fields_by_index = read_leaves_by_index(client.indices.get_mapping(index=index))
    pipeline = client.search_pipeline_of(index)  # a pipeline that ranks may cost money, or refuse the request
    groups = sample_groups(index, fields_by_index, pipeline.replacement)
    samples = () if pipeline.obstacle else client.result_of(groups, index)
    return resolve_fields(fields_by_index, samples, named) if samples else client.fields_of(index)


def _stores_vectors(client: Any, index: str | None) -> bool:
    """Return whether document vectors are stored, so that each document is encoded only once."""
    settings = client.searcher.service.settings
    if settings.vectors == "off":
        return False
    with client.searcher.serving(index) if index else nullcontext(client.searcher.service) as service:
        defaults = client.searcher.defaults
        return service.vectors_of(defaults.options_for(index) if index else defaults.base) is not None


def _with_vectors(deadline_ms: float | None) -> FileOptions:
    deadline = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
    return FileOptions({"depth": MAX_DEPTH, **deadline}, "each document is encoded once, and its vector stored")


def _without_vectors(client: Any, index: str | None, texts: Sequence[str], deadline_ms: float | None) -> FileOptions:
    """Return the options for a model that reads the candidates in every search; its speed here determines the depth."""
    speed, time_ms = _measure(client, texts), INTERACTIVE_MS if deadline_ms is None else deadline_ms
    description = f"documents of {index}" if texts else "invented documents of 100 words"
    note = f"{speed.documents} {description} were scored at {speed.pairs_per_s:.0f} a second here"
    return FileOptions({"depth": _depth(speed.pairs_per_s, time_ms), "deadline_ms": time_ms}, note)


def _show_fields(index: str, fields: SearchFields, *, is_written: bool, has_texts: bool) -> None:
    for warning in (*fields.warnings, *fields.check_names(None)):
        click.echo(f"{index}: {warning}", err=True)
    reason = "its indices have different fields" if has_texts else "there are no documents with text yet"
    not_written = "" if is_written else f"; not written, so that each search looks again: {reason}"
    left_out = f"; left out: {', '.join(fields.left_out)}" if fields.left_out else ""
    click.echo(
        f"{index}: searched: {', '.join(fields.searched)}; read: {', '.join(fields.read)}{left_out}{not_written}"
    )


def _build_vectors(client: Any, index: str, *, build: bool) -> None:
    """Print how many vectors an index lacks and which command builds them; build them if ``build`` is set."""
    from osrerank.indexing.build import build_on_screen
    from osrerank.indexing.estimate import estimate

    click.echo(str(estimate(client, index)))
    if build:
        click.echo(f"{index}: {build_on_screen(client, index)}")


def _measure(client: Any, sample: Sequence[str]) -> Speed:
    """Score a sample of documents twice, to warm up and to take the time; vectors are not stored."""
    texts = list(sample) or [" ".join(["some words of an invented document"] * 17)] * SAMPLE_DOCUMENTS
    from osrerank.scoring.card import POINTWISE

    scorer = as_scorer(load(client.searcher.service.settings, POINTWISE))
    tuples = [(index,) for index in range(len(texts))]
    with closing(scorer):
        scorer.score("a question of five words", texts, tuples)
        began_s = time.perf_counter()
        scorer.score("another question of six words", texts, tuples)
        return Speed(len(texts), len(texts) / (time.perf_counter() - began_s))


def _sample(client: Any, index: str, fields: SearchFields) -> list[str]:
    """Return the texts of some documents of an index, as a model reads them."""
    from osrerank.indexing.documents import sample_texts

    return sample_texts(client, index, fields, SAMPLE_DOCUMENTS)


def _choose_model(client: Any, index: str, texts: Sequence[str]) -> str:
    """Print the languages of an index's documents; return a better model for them, or "" to keep the present model."""
    from osrerank.indexing.languages import Languages

    languages = Languages.detect(client, index, texts)
    for sentence in languages.sentences:
        click.echo(f"{index}: {sentence}")
    if not languages.needs_multilingual or not is_installed():
        return ""
    click.echo(f"{index}: the file names {MULTILINGUAL} as its model")
    return MULTILINGUAL


def _depth(pairs_per_s: float, deadline_ms: float) -> int:
    """Return how many candidates can be scored in a share of the deadline, in steps of ten."""
    count = pairs_per_s * SCORING_SHARE * deadline_ms / 1000
    return int(min(MAX_DEPTH, max(MIN_DEPTH, count // DEPTH_STEP * DEPTH_STEP)))
