"""``osrerank advise``: test whether reranking helps on an index, and recommend fields, model, depth and weight."""

import json
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import INDEX, open_client, wants_json
from osrerank.cli.path_types import FILE, OUTPUT_FILE, SOURCE
from osrerank.cli.settings_file import refuse_existing, write_index_settings
from osrerank.options.passages import Passages
from osrerank.scoring.names import LOCAL_BACKENDS
from osrerank.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from osrerank.client import Client
    from osrerank.decision.advice.advise import Alternatives, IndexAdvice

NO_CACHE = {"cache_mb": 0, "cache_local_mb": 0}
"""These settings turn the score caches off, so that the measured times are those of the model."""
DEFAULT_MODELS = ("osrerank/e5-small", "osrerank/minilm-l6")
"""The bi-encoders to compare without ``--models``, if the backend computes on this machine."""


@click.command()
@click.option("--index", "-i", type=INDEX, required=True, help="Index to search.")
@click.option("--queries", required=True, type=SOURCE, help="Queries, in any format that `osrerank run` reads.")
@click.option("--qrels", required=True, type=SOURCE, help="Judgments; queries without relevant documents are left out.")
@click.option("--measure", "-m", default="nDCG@10", show_default=True, help="Measure, by its name in ir-measures.")
@click.option("--html", type=OUTPUT_FILE, help="HTML report to write, in one file.")
@click.option(
    "--fields",
    multiple=True,
    metavar="NAME,NAME",
    help="Fields to compare with the current ones; repeat for more.  [default: each current field alone, and the first "
    "two, three, ... together]",
)
@click.option(
    "--models",
    multiple=True,
    metavar="NAME",
    help="Model to compare with the current one; repeat for more.  [default: the shipped bi-encoders]",
)
@click.option(
    "--template",
    type=FILE,
    help="Your own query to compare: a search body in JSON, with {{query}} for the text.",
)
@click.option("--quick", is_flag=True, help="Compare only depths and weights, and the values of --fields and --models.")
@click.option("--exclude-query-ids", is_flag=True, help="Leave out the hit that has the query's id, as BEIR does.")
@click.option("--output", "-o", type=OUTPUT_FILE, default=SETTINGS_FILE, show_default=True, help="Settings file.")
@click.option("--force", is_flag=True, help="Change the index's part of the file if it exists; comments are lost.")
@click.pass_context
def advise(context: click.Context, /, **options: Any) -> None:
    """Test whether reranking helps, and whether other fields, another model, depth or weight is better.

    \b
    osrerank advise --index articles --queries queries.tsv --qrels qrels.txt --html advice.html
    osrerank advise --index articles --queries queries.tsv --qrels qrels.txt --template my-query.json

    Every judged query is searched with the index's options, and again with each alternative: other fields, other
    models, and your own query. A paired t-test shows whether reranking with the current settings helps or hurts. If
    neither is clear, the report says how many more queries would show it. Other settings are chosen by
    cross-validation, so that their reported value is not too good for new queries. They are recommended only if they
    are significantly better; if none is and reranking hurts, turning it off is recommended. The recommended settings
    are written to the settings file, which `connect` reads.
    """
    from osrerank.cli.batch import progress
    from osrerank.decision.advice import report
    from osrerank.decision.advice.advise import advise as compare_settings
    from osrerank.decision.advice.advise import judged_queries
    from osrerank.formats.files import write_atomically
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels

    index = options["index"]
    output = options["output"]
    refuse_existing(output, force=options["force"])
    judgments = read_qrels(options["qrels"])
    queries = judged_queries(read_queries(options["queries"]), judgments)
    with ExitStack() as stack:
        client = stack.enter_context(closing(open_client(context, settings=NO_CACHE)))
        _report_missing_vectors(client, index)
        alternatives = _choose_alternatives(context, client, options, stack)
        if alternatives and not options["quick"]:
            click.echo(
                f"{len(alternatives)} alternatives are also compared; --quick compares only named ones", err=True
            )
        with progress(len(queries) * (1 + len(alternatives)), n_resumed=0) as advance:
            advice = compare_settings(
                client,
                index,
                queries,
                judgments,
                measure=options["measure"],
                alternatives=alternatives,
                exclude_query_ids=options["exclude_query_ids"],
                advance=advance,
            )
    notes = f"Made by osrerank advise from {len(advice.current_hits)} queries: {report.headline(advice)}."
    if advice.recommended:
        model = advice.recommended.get("model")
        new_settings_file = write_index_settings(output, notes, index, build_settings_table(advice), model)
        changes = ", ".join(f"{name} = {value}" for name, value in advice.recommended.items())
    else:
        new_settings_file = "Nothing to change."
        changes = "nothing to change"
    if options["html"]:
        write_atomically(options["html"], [report.html_page(advice, judgments, new_settings_file)])
    if wants_json(context):
        click.echo(json.dumps(report.as_json(advice)))
        return
    click.echo("\n".join([*report.lines(advice), *report.extreme_lines(advice), f"{output}: {changes}"]))
    needs_new_vectors = advice.best.hits_key != advice.current.hits_key  # the texts or the model differ
    if advice.recommended and needs_new_vectors:
        click.echo(
            f"the stored vectors belong to other texts or another model: run osrerank vectors build --index {index}"
        )


def _choose_alternatives(
    context: click.Context, client: "Client", options: dict[str, Any], stack: ExitStack
) -> "Alternatives":
    """Return the fields, models and query to compare with the current ones.

    If ``--fields`` or ``--models`` is not set, the default fields or models are compared, unless ``--quick`` is set.
    The clients of the models are closed with ``stack``.
    """
    from osrerank.decision.advice.advise import Alternatives
    from osrerank.decision.advice.template import QueryTemplate

    settings = client.searcher.service.settings
    current_fields = tuple(client.options_of(options["index"]).fields or ())
    field_lists = [tuple(name.strip() for name in option.split(",")) for option in options["fields"]]
    models = list(options["models"])
    if not options["quick"]:
        field_lists = field_lists or list_field_choices(current_fields)
        if not models and settings.backend in LOCAL_BACKENDS:
            models = list(DEFAULT_MODELS)
    # vectors of alternatives are stored in a file on this machine, so that the cluster is not changed
    store = "off" if settings.vectors == "off" else "file"

    def open_client_for(model: str) -> "Client":
        alternative = open_client(context, settings={**NO_CACHE, "vectors": store}, model=model)
        return stack.enter_context(closing(alternative))

    other_field_lists = [fields for fields in dict.fromkeys(field_lists) if fields != current_fields]
    clients = [open_client_for(name) for name in dict.fromkeys(models) if name != settings.model]
    template = None if options["template"] is None else QueryTemplate.read(options["template"])
    # the client of the current settings would store the other fields' vectors in the cluster
    fields_client = open_client_for(settings.model) if other_field_lists else None
    return Alternatives(other_field_lists, clients, template, fields_client)


def list_field_choices(current: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the field lists to compare: each current field alone, and the first two, three, ... together.

    For ``("title", "abstract", "body")``, these are the three fields alone and ``("title", "abstract")``.
    """
    if len(current) < 2:
        return []
    single_fields = [(name,) for name in current]
    first_fields = [current[:count] for count in range(2, len(current))]
    return [*single_fields, *first_fields]


def _report_missing_vectors(client: "Client", index: str) -> None:
    """If documents lack stored vectors, print how long it takes to build them."""
    from osrerank.errors import ConfigError
    from osrerank.indexing.estimate import estimate

    with suppress(ConfigError):  # a cross-encoder has no vectors
        cost = estimate(client, index)
        if cost.coverage.lacks:
            click.echo(f"searches compute the missing vectors of their hits; to build all now: {cost}", err=True)


def build_settings_table(advice: "IndexAdvice") -> dict[str, Any]:
    """Return the options for the settings file: the recommended ones, and the index's fields."""
    options = advice.options
    table = {"fields": options.fields, **advice.recommended, "query_fields": options.query_fields}
    table.pop("model", None)
    # the recommendation contains only the aggregation of passages, but the file needs all their options
    if isinstance(options.passages, Passages) and "passages" in table:
        table["passages"] = {name: value for name, value in asdict(options.passages).items() if value is not None}
    return table
