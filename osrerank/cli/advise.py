"""``osrerank advise``: test whether reranking helps on an index, and recommend fields, model, depth and weight."""

import json
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from osrerank.cli.options import open_client, wants_json
from osrerank.cli.path_types import FILE, OUTPUT_FILE, SOURCE
from osrerank.cli.settings_file import refuse_existing, write_index_settings
from osrerank.options.passages import Passages
from osrerank.settings import SETTINGS_FILE

if TYPE_CHECKING:
    from osrerank.decision.advice.advise import IndexAdvice

NO_CACHE = {"cache_mb": 0, "cache_local_mb": 0}
"""The settings that turn the score caches off, so that scoring times are real."""
SHIPPED_MODELS = ("osrerank/e5-small", "osrerank/minilm-l6")
LOCAL_BACKENDS = ("auto", "onnx", "torch")


@click.command()
@click.option("--index", "-i", required=True, help="Index to search.")
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
    models, and your own query. A paired t-test shows whether reranking with the current settings helps or hurts, or
    how many more queries would decide it. Other settings are chosen by cross-validation, so that the reported value
    holds for new queries. They replace the current settings only if they are significantly better, or if the current
    settings hurt. Only a change is written to the settings file, which `connect` reads.
    """
    from osrerank.cli.batch import progress
    from osrerank.decision.advice import report
    from osrerank.decision.advice.advise import advise as compare_settings
    from osrerank.decision.advice.advise import judged_queries
    from osrerank.formats.files import write_atomically
    from osrerank.formats.topics import read_queries
    from osrerank.formats.trec import read_qrels

    index, output = options["index"], options["output"]
    refuse_existing(output, force=options["force"])
    judgments = read_qrels(options["qrels"])
    queries = judged_queries(read_queries(options["queries"]), judgments)
    with ExitStack() as stack:
        client = stack.enter_context(closing(open_client(context, settings=NO_CACHE)))
        _report_missing_vectors(client, index)
        alternatives = _choose_alternatives(context, client, options, stack)
        if alternatives and not options["quick"]:
            click.echo(f"{len(alternatives)} alternatives are also compared; --quick leaves them out", err=True)
        with progress(len(queries) * (1 + len(alternatives)), 0) as advance:
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
    notes = f"Made by osrerank advise from {len(advice.sampled)} queries: {report.headline(advice)}."
    file_text = "Nothing to change."
    changes = "nothing to change"
    if advice.recommended:
        model = advice.recommended.get("model")
        file_text = write_index_settings(output, notes, index, settings_table(advice), model)
        changes = ", ".join(f"{name} = {value}" for name, value in advice.recommended.items())
    if options["html"]:
        write_atomically(options["html"], [report.html_page(advice, judgments, file_text)])
    if wants_json(context):
        click.echo(json.dumps(report.as_json(advice)))
        return
    click.echo("\n".join([*report.lines(advice), *report.extreme_lines(advice), f"{output}: {changes}"]))
    if advice.recommended and advice.best.sample != advice.current.sample:
        click.echo(
            f"the stored vectors belong to other texts or another model: run osrerank vectors build --index {index}"
        )


def _choose_alternatives(context: click.Context, client: Any, options: dict[str, Any], stack: ExitStack) -> Any:
    """Return the fields, models and query to compare with the current ones.

    Without ``--fields`` or ``--models``, all fields or shipped models are compared, unless ``--quick`` is set. The
    clients are closed by ``stack``.
    """
    from osrerank.decision.advice.advise import Alternatives
    from osrerank.decision.advice.template import QueryTemplate

    current = tuple(client.options_of(options["index"]).fields or ())
    fields = [tuple(name.strip() for name in option.split(",")) for option in options["fields"]]
    models = list(options["models"])
    if not options["quick"]:
        fields = fields or field_choices(current)
        if not models and client.searcher.service.settings.backend in LOCAL_BACKENDS:
            models = list(SHIPPED_MODELS)
    settings = client.searcher.service.settings
    # alternatives store their vectors in the file, not in a side index on the cluster
    store = "off" if settings.vectors == "off" else "file"

    def open_alternative(model: str) -> Any:
        alternative = open_client(context, settings={**NO_CACHE, "vectors": store}, model=model)
        return stack.enter_context(closing(alternative))

    fields = [choice for choice in dict.fromkeys(fields) if choice != current]
    clients = [open_alternative(name) for name in dict.fromkeys(models) if name != settings.model]
    template = None if options["template"] is None else QueryTemplate.read(options["template"])
    fields_client = open_alternative(settings.model) if fields else None
    return Alternatives(fields, clients, template, fields_client)


def field_choices(current: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Return the field lists to compare: each current field alone, and the first two, three, ... together."""
    if len(current) < 2:
        return []
    return [*((name,) for name in current), *(current[:count] for count in range(2, len(current)))]


def _report_missing_vectors(client: Any, index: str) -> None:
    from osrerank.errors import ConfigError
    from osrerank.indexing.estimate import estimate

    with suppress(ConfigError):  # a cross-encoder has no vectors
        build = estimate(client, index)
        if build.coverage.lacks:
            click.echo(
                f"the searches compute the missing vectors of their hits; to build all beforehand: {build}", err=True
            )


def settings_table(advice: "IndexAdvice") -> dict[str, Any]:
    """Return the options to write to the settings file: the recommended ones, and the index's fields."""
    options = advice.options
    table = {"fields": options.fields, **advice.recommended, "query_fields": options.query_fields}
    table.pop("model", None)
    if isinstance(options.passages, Passages) and "passages" in table:
        table["passages"] = {name: value for name, value in asdict(options.passages).items() if value is not None}
    return table
