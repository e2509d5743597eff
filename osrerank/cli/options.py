"""The options that several commands share, and the client that is made from them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from osrerank._removed import instead_of
from osrerank.client import Client, connection_options
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import BLENDS, MAX_DEPTH, MAX_DUO_DEPTH, MOST_MS, NO_STAGES, PIPELINES, RerankOptions
from osrerank.settings import Settings

DURATION = click.FloatRange(0, MOST_MS, min_open=True)
Command = TypeVar("Command", bound=Callable[..., Any])

MODEL_SETTINGS = ("redis_url", "model", "vector_model", "duo_model", "backend", "dtype")
RERANK_NAMES = (
    "pipeline",
    "depth",
    "mono_depth",
    "duo_depth",
    "pairs",
    "blend",
    "blend_weight",
    "passages",
    "sentences",
    "rm3",
    "fields",
    "query_fields",
    "separator",
    "min_score",
    "min_probability",
    "cutoff",
    "deadline_ms",
    "on_failure",
)


class CheckpointParam(click.ParamType[Path]):
    """The type of a parameter that names a model with weights, as for ``--model``, in any format."""

    name = "checkpoint"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002 - click's
        """Return the model's directory; a model on the hub is downloaded."""
        from osrerank.scoring.locate import locate  # noqa: PLC0415 - keeps the command's help quick
        from osrerank.scoring.registry import forms_of  # noqa: PLC0415 - likewise

        return locate(str(value), forms=forms_of("torch"), also=("README.md",))  # the README names the languages


class Model(CheckpointParam):
    """The type of a parameter that names a model to train from; pickled or TensorFlow weights are converted first."""

    name = "model"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the model's directory, or that of the converted model."""
        from osrerank.scoring.checkpoints.convert import usable  # noqa: PLC0415 - keeps the command's help quick

        return usable(super().convert(value, param, ctx)).directory


CHECKPOINT, MODEL = CheckpointParam(), Model()


def named_options(first: str) -> Callable[..., dict[str, Any] | None]:
    """Return a click callback that reads a group of options from ``VALUE,NAME=VALUE``.

    Args:
        first: the option that a leading value without a name sets.
    """

    def read(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
        if value is None:
            return None
        given: dict[str, Any] = {}
        for index, part in enumerate(value.split(",")):
            name, equals, content = part.strip().partition("=")
            if not equals and index == 0:
                name, content = first, name
            elif not (equals and name and content):
                raise click.BadParameter(f"{part!r} is not NAME=VALUE")
            if name in given:
                raise click.BadParameter(f"{name} is given twice; give it once")
            given[name] = _number_or_text(content)
        return given

    return read


def _number_or_text(content: str) -> Any:
    """Read a value: true or false, a number, a list separated by slashes, or else the text itself."""
    if content in ("true", "false"):
        return content == "true"
    if "/" in content:
        return [_number_or_text(part) for part in content.split("/")]
    for kind in (int, float):
        try:
            return kind(content)
        except ValueError:
            continue
    return content


def read_cutoff(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Read a precision at which the list ends."""
    if value is None:
        return None
    if fix := instead_of(f"rerank.cutoff.{value}"):
        raise click.BadParameter(fix)
    return {"precision": click.FloatRange(0, 1, min_open=True, max_open=True).convert(value, option, context)}


def _depth(context: click.Context, option: click.Parameter, value: Any) -> Any:
    """Read a depth: a number, or ``auto``."""
    return value if value in (None, "auto") else click.IntRange(1, MAX_DEPTH).convert(value, option, context)


allow_partial = click.option(
    "--allow-partial",
    is_flag=True,
    help="Keep queries that were reranked only in part: cut off by a deadline, or with documents that have no score.",
)
run_form = click.option(
    "--format",
    "form",
    type=click.Choice(["trec", "msmarco"]),
    default="trec",
    show_default=True,
    help="TREC's six columns, or those of MS MARCO's submissions: query id, document id, rank.",
)


def pipeline_options(command: Command) -> Command:
    """Add the options that say how candidates are ranked to a command."""
    for option in reversed(
        (
            click.option("--pipeline", type=click.Choice(PIPELINES), help="Stages that rerank.  [default: auto]"),
            click.option(
                "--depth", callback=_depth, metavar="INTEGER|auto", help="Candidates reranked.  [default: 100]"
            ),
            click.option(
                "--mono-depth",
                type=click.IntRange(1, MAX_DEPTH),
                help="Candidates that the cross-encoder of vectors-mono reads.  [default: 20]",
            ),
            click.option(
                "--duo-depth",
                type=click.IntRange(0, MAX_DUO_DEPTH),
                help="Candidates that are compared in pairs.  [default: 20]",
            ),
            click.option(
                "--pairs",
                callback=named_options("aggregation"),
                help="How a candidate's pairs are aggregated: sum, binary, min, max; sample,sample_size=10,seed=0.",
            ),
            click.option(
                "--blend", type=click.Choice(BLENDS), help="How BM25 and the model are combined.  [default: card]"
            ),
            click.option(
                "--blend-weight",
                type=click.FloatRange(min=0),
                help="What BM25's best score adds to the model's in the blend.",
            ),
            click.option(
                "--passages",
                callback=named_options("aggregation"),
                help="Judge documents by their passages: maxp, firstp, sump, kmaxavgp; maxp,limit=10.",
            ),
            click.option(
                "--sentences",
                callback=named_options("a"),
                help="Judge documents by their best sentences and BM25: a=0.5, or a=0.4,weights=1/0.2/0.1.",
            ),
        )
    ):
        command = option(command)
    return command


def rerank_options(command: Command) -> Command:
    """Add the options of a reranked search to a command; `rerank_arguments` reads them."""
    for option in reversed(
        (
            click.option("--rerank/--no-rerank", "do_rerank", default=True, help="Rerank, or keep BM25's order."),
            pipeline_options,
            click.option(
                "--fields", help="Fields that the model reads, comma-separated.  [default: those that are searched]"
            ),
            click.option(
                "--query-fields",
                help="Fields that the query searches, as title^2,body.  [default: found in the mapping]",
            ),
            click.option("--separator", help="Text between the fields that the model reads.  [default: a space]"),
            click.option("--rm3", is_flag=True, default=None, help="Widen the first pass's query by feedback (RM3)."),
            click.option(
                "--rm3-options",
                callback=named_options("documents"),
                help="RM3 with other numbers: documents=10,terms=10,weight=0.5,field=text.",
            ),
            click.option("--deadline-ms", type=DURATION, help="Time for a whole search."),
            click.option(
                "--on-failure", type=click.Choice(["first_pass", "raise"]), help="What to do when reranking fails."
            ),
        )
    ):
        command = option(command)
    return command


def rerank_arguments(options: dict[str, Any]) -> RerankOptions | bool:
    """Return the ``rerank`` argument of a search: the options given on the command line, or False."""
    options = {**options, "rm3": options.get("rm3_options") or options.get("rm3")}
    if not options["do_rerank"]:
        first_pass = {"rm3": options.get("rm3"), "query_fields": _names(options.get("query_fields"))}
        kept = {name: value for name, value in first_pass.items() if value}
        return cast("RerankOptions", {"pipeline": NO_STAGES, **kept}) if kept else False
    given: dict[str, Any] = {name: options[name] for name in RERANK_NAMES if options.get(name) is not None}
    names: dict[str, Any] = {name: _names(options[name]) for name in ("fields", "query_fields") if name in given}
    return cast("RerankOptions", {**given, **names})


def _names(text: str | None) -> tuple[str, ...] | None:
    return tuple(name.strip() for name in text.split(",")) if text else None


def client_of(context: click.Context, *, warm: bool = False, **settings: Any) -> Client:
    """Return the client for the global options; it reranks all its searches, without a default deadline.

    Args:
        context: has the global options.
        warm: whether to load the models now.
        settings: the settings that the command determines.
    """
    model = context.obj["model"]
    known = Settings.load(**{name: context.obj[name] for name in ("url", *MODEL_SETTINGS)}, **settings)
    defaults = Defaults.load(known, model=model).for_all()
    client = Client(settings=known, defaults=defaults, **connection_options(known))
    client.searcher.deadline_ms = None
    if model and (others := Defaults.load(known).models):
        click.echo(f"--model {model} is used, and not what the settings file names for {', '.join(others)}", err=True)
    if warm:
        client.warm_up()
    return client


def wants_json(context: click.Context) -> bool:
    """Return whether the output is JSON, for programs."""
    return bool(context.obj["as_json"])
