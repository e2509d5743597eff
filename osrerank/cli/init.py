"""``osrerank init``: inspect an index, measure this machine, and write a settings file with suitable options."""

import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import click

from osrerank.cli.options import DURATION_MS, INDEX, open_client
from osrerank.cli.path_types import OUTPUT_FILE
from osrerank.cli.settings_file import format_settings, refuse_existing
from osrerank.formats.files import write_atomically
from osrerank.retrieval.fields import FieldChoice, SearchFields, caller_names, resolve_fields
from osrerank.retrieval.mapping import read_leaves_by_index
from osrerank.retrieval.samples import choose_fields_by_samples
from osrerank.scoring.names import MULTILINGUAL
from osrerank.scoring.registry import as_scorer, load
from osrerank.settings import SETTINGS_FILE
from osrerank.stages.language_guard import is_multilingual_installed
from osrerank.types.scores import single_documents

SAMPLE_DOCUMENTS = 20
INVENTED_TEXT = " ".join(["some words of an invented document"] * 17)
"""About 100 words, which are scored if the index has no documents with text."""
DEFAULT_DEADLINE_MS = 1000.0
SCORING_SHARE = 0.5
"""The depth is chosen so that scoring takes this share of the deadline. The rest is a reserve for a busy machine."""
MIN_DEPTH = 10
MAX_DEPTH = 100
DEPTH_STEP = 10


class Speed(NamedTuple):
    """The measured speed of scoring on this machine."""

    n_documents: int
    documents_per_s: float


class BaseOptions(NamedTuple):
    """The options for all indices, such as ``{"depth": 100}``, and a note that says why they were chosen."""

    options: dict[str, Any]
    note: str


@click.command()
@click.option("--index", "-i", type=INDEX, help="Index to inspect: its text fields, and the lengths of its documents.")
@click.option(
    "--deadline-ms",
    type=DURATION_MS,
    help="Deadline of a search.  [default: none; 1000 for a cross-encoder or without stored vectors]",
)
@click.option("--build", is_flag=True, help="Also build the missing vectors of --index.")
@click.option("--output", "-o", type=OUTPUT_FILE, default=SETTINGS_FILE, show_default=True, help="File to write.")
@click.option("--force", is_flag=True, help="Write over the file if it exists.")
@click.pass_context
def init(
    context: click.Context, /, *, index: str | None, deadline_ms: float | None, build: bool, output: Path, force: bool
) -> None:
    """Write osrerank.toml with text fields, model and depth, and say how to build missing vectors.

    \b
    osrerank --url https://localhost:9200 init --index articles --build

    The file lists the text fields whose values, in a sample of documents, are titles or prose. If the model does not
    support the documents' language, the index gets osrerank/e5-multilingual, if it is installed. The depth is 100 if
    document vectors are stored. With a cross-encoder, or with OSRERANK_VECTORS=off, the depth is the number of
    documents that this machine scores in half of the deadline, at most 100.

    `connect` and the command line read ./osrerank.toml, or the file in the user's configuration folder, and log which
    one they read.
    """
    from osrerank.indexing.documents import sample_texts

    if build and index is None:
        raise click.UsageError("--build needs an index: set it with --index")
    refuse_existing(output, force=force)
    with closing(open_client(context)) as client:
        fields = SearchFields()
        texts: list[str] = []
        model = ""  # the settings' model
        if index:
            fields = _find_fields(client, index)
            texts = sample_texts(client, index, fields, SAMPLE_DOCUMENTS)
            model = _choose_model(client, index, texts)
    with closing(open_client(context, model=model or None)) as client:  # again, with the chosen model
        stores_vectors = _stores_vectors(client, index)
        if stores_vectors:
            base = _options_with_vectors(deadline_ms)
        else:
            base = _options_without_vectors(client, index, texts, deadline_ms)
        indices_have_same_fields = not fields.groups  # an alias or pattern can stand for groups of different indices
        options_by_index = {}
        if index and texts and indices_have_same_fields:
            options_by_index[index] = {"query_fields": fields.query_fields, "fields": fields.model_fields}
        models = {index: model} if index and model else {}
        comment = f"Made by osrerank init: {base.note}."
        write_atomically(output, [format_settings(comment, base.options, options_by_index, models)])
        values = ", ".join(f"{name} {value:g}" for name, value in base.options.items())
        click.echo(f"{output}: {values}; {base.note}")
        if index:
            _print_fields(index, fields, is_written=bool(options_by_index), has_texts=bool(texts))
        if index and texts and stores_vectors:
            _build_vectors(client, index, build=build)


def _find_fields(client: Any, index: str) -> SearchFields:
    """Return the fields in the settings, or else those whose values in a sample of documents are titles or prose.

    If no sample can be read, return the fields that a search would use.
    """
    options = client.searcher.defaults.options_for(index)
    caller_fields = FieldChoice(caller_names(options.query_fields), caller_names(options.fields))
    fields_by_index = read_leaves_by_index(client.indices.get_mapping(index=index))
    pipeline = client.search_pipeline_of(index)
    if pipeline.blocking_reason:
        usual_fields: SearchFields = client.fields_of(index)
        return usual_fields
    # samples are read without the index's search pipeline, which might cost money or refuse the requests
    steps = choose_fields_by_samples(index, fields_by_index, pipeline.replacement)
    groups = client.perform_steps(steps, index)
    return resolve_fields(fields_by_index, groups, caller_fields) if groups else client.fields_of(index)


def _stores_vectors(client: Any, index: str | None) -> bool:
    """Return whether document vectors are stored, so that each document is encoded only once."""
    searcher = client.searcher
    if searcher.service.settings.vectors == "off":
        return False
    if not index:
        return searcher.service.load_vectors(searcher.defaults.base) is not None
    with searcher.service_for(index) as service:
        return service.load_vectors(searcher.defaults.options_for(index)) is not None


def _options_with_vectors(deadline_ms: float | None) -> BaseOptions:
    options: dict[str, Any] = {"depth": MAX_DEPTH}
    if deadline_ms is not None:
        options["deadline_ms"] = deadline_ms
    return BaseOptions(options, "each document is encoded once, and its vector stored")


def _options_without_vectors(
    client: Any, index: str | None, texts: Sequence[str], deadline_ms: float | None
) -> BaseOptions:
    """Return options for a model that scores all candidates again in every search. Its speed determines the depth."""
    speed = _measure_speed(client, texts)
    if deadline_ms is None:
        deadline_ms = DEFAULT_DEADLINE_MS
    documents = f"documents of {index}" if texts else "invented documents of 100 words"
    note = f"{speed.n_documents} {documents} were scored at {speed.documents_per_s:.0f} a second here"
    return BaseOptions({"depth": _choose_depth(speed.documents_per_s, deadline_ms), "deadline_ms": deadline_ms}, note)


def _print_fields(index: str, fields: SearchFields, *, is_written: bool, has_texts: bool) -> None:
    for warning in (*fields.warnings, *fields.check_names(fields_with_text=None)):
        click.echo(f"{index}: {warning}", err=True)
    line = f"{index}: searched: {', '.join(fields.query_fields)}; read: {', '.join(fields.model_fields)}"
    if fields.left_out:
        line += f"; left out: {', '.join(fields.left_out)}"
    if not is_written:
        reason = "its indices have different fields" if has_texts else "there are no documents with text yet"
        line += f"; not written, because {reason}: each search chooses the fields"
    click.echo(line)


def _build_vectors(client: Any, index: str, *, build: bool) -> None:
    from osrerank.indexing.build import build_on_screen
    from osrerank.indexing.estimate import estimate

    click.echo(str(estimate(client, index)))
    if build:
        click.echo(f"{index}: {build_on_screen(client, index)}")


def _measure_speed(client: Any, sampled_texts: Sequence[str]) -> Speed:
    """Measure how fast a sample of documents is scored, after a first scoring as warm-up. No vectors are stored."""
    from osrerank.scoring.card import POINTWISE

    texts = list(sampled_texts) or [INVENTED_TEXT] * SAMPLE_DOCUMENTS
    scorer = as_scorer(load(client.searcher.service.settings, POINTWISE))
    tuples = single_documents(len(texts))
    with closing(scorer):
        scorer.score("a question of five words", texts, tuples)
        began_s = time.perf_counter()
        scorer.score("another question of six words", texts, tuples)
        return Speed(len(texts), len(texts) / (time.perf_counter() - began_s))


def _choose_model(client: Any, index: str, texts: Sequence[str]) -> str:
    """Print the documents' languages. Return a model that supports them, or "" if the current model stays."""
    from osrerank.indexing.languages import Languages

    languages = Languages.detect(client, index, texts)
    for sentence in languages.sentences:
        click.echo(f"{index}: {sentence}")
    if not languages.needs_multilingual or not is_multilingual_installed():
        return ""
    click.echo(f"{index}: the settings file sets its model to {MULTILINGUAL}")
    return MULTILINGUAL


def _choose_depth(documents_per_s: float, deadline_ms: float) -> int:
    """Return how many candidates can be scored in `SCORING_SHARE` of the deadline, in tens from 10 to 100."""
    count = documents_per_s * SCORING_SHARE * deadline_ms / 1000
    rounded_count = count // DEPTH_STEP * DEPTH_STEP
    return int(min(MAX_DEPTH, max(MIN_DEPTH, rounded_count)))
