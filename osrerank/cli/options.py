"""The options that several commands share, and the client that follows from them."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import click

from osrerank._removed import replacement_for
from osrerank.client import Client, connection_options
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.descriptions import first_sentence, read_descriptions
from osrerank.options.rerank import BLENDS, GROUPS, MAX_MS, NO_STAGES, PIPELINES, Rerank, RerankOptions
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.types import FailurePolicy

DURATION = click.FloatRange(0, MAX_MS, min_open=True)
Command = TypeVar("Command", bound=Callable[..., Any])

MODEL_SETTINGS = ("redis_url", "model", "vector_model", "duo_model", "backend", "dtype")
RANKING = ("pipeline", "depth", "mono_depth", "duo_depth", "pairs", "blend", "blend_weight", "passages", "sentences")
"""The search options that determine how candidates are ranked."""
SEARCHING = (*RANKING, "fields", "query_fields", "separator", "rm3", "deadline_ms", "on_failure")
"""The options in `RANKING`, those of the first pass and those of the whole search."""
CHOICES = {"pipeline": PIPELINES, "blend": BLENDS, "on_failure": get_args(FailurePolicy)}
NAMES = ("fields", "query_fields")
SWITCHES = ("sentences", "rm3")
"""The groups of options that may be named without a value."""


class CheckpointParam(click.ParamType[Path]):
    """The type of a parameter that names a model with weights in any format, as ``--model`` does."""

    name = "checkpoint"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002 - click's
        """Return the model's directory, after a download if the model is on the hub."""
        from osrerank.scoring.locate import locate
        from osrerank.scoring.registry import weights_for

        # the README lists the languages
        return locate(str(value), weights=weights_for("torch"), extra_files=("README.md",))


class Model(CheckpointParam):
    """The type of a parameter that names a model to train; pickled or TensorFlow weights are converted first."""

    name = "model"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the directory of the model, converted if need be."""
        from osrerank.scoring.checkpoints.convert import convert_if_needed

        return convert_if_needed(super().convert(value, param, ctx)).directory


CHECKPOINT, MODEL = CheckpointParam(), Model()


def option_parser(first: str) -> Callable[..., dict[str, Any] | None]:
    """Return a click callback that reads a group of options from ``VALUE,NAME=VALUE``.

    Args:
        first: the name of the option that a first value without a name sets.
    """

    def parse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
        if value is None:
            return None
        values: dict[str, Any] = {}
        for index, part in enumerate(value.split(",")):
            name, equals, content = part.strip().partition("=")
            if not equals and index == 0:
                name, content = first, name
            elif not (equals and name and content):
                raise click.BadParameter(f"{part!r} is not NAME=VALUE")
            if name in values:
                raise click.BadParameter(f"{name} is set twice; set it once")
            values[name] = _number_or_text(content)
        return values

    return parse


def _number_or_text(content: str) -> Any:
    """Parse a value: true or false, a number, a list with slashes between its values, or else a text."""
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


class SearchOption(click.ParamType[Any]):
    """The type of a command-line option that is a search option; `Rerank` checks its values.

    Args:
        option: the name of the option in ``rerank``.
    """

    def __init__(self, option: str) -> None:
        self.option, self.name = option, "text"
        self.group = GROUPS[option][0] if option in GROUPS else None
        self.first = fields(self.group)[0].name if self.group else ""
        self.hint = get_type_hints(Rerank)[option]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Describe the values by the types that the option may have, such as ``INTEGER|auto``."""
        if self.group:
            return f"{self.first.upper()},NAME=VALUE" if fields(self.group)[1:] else self.first.upper()
        kinds = {int: "INTEGER", float: "NUMBER", str: "TEXT", tuple[str, ...]: "NAME,NAME"}
        parts = get_args(self.hint) if get_origin(self.hint) in (Union, UnionType) else (self.hint,)
        return "|".join(kinds.get(part) or "|".join(get_args(part)) for part in parts if part is not type(None))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse the option's value, or reject it and say what it must be."""
        if fix := replacement_for(f"rerank.{self.option}.{value}"):
            self.fail(f"{value!r} is gone; {fix}", param, ctx)
        if self.group is not None and value not in ("true", "false"):
            parsed: Any = option_parser(self.first)(ctx, param, value)
        elif self.hint is str:
            parsed = value
        elif self.option in NAMES:
            parsed = tuple(name.strip() for name in value.split(","))
        else:
            parsed = _number_or_text(value)
        try:
            Rerank.of({self.option: parsed}, Rerank())
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return parsed


def search_options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds search options, as `Rerank` describes them; `rerank_arguments` reads them."""
    texts = read_descriptions(Rerank)
    defaults = {field.name: field.default for field in fields(Rerank)}

    def add(command: Command) -> Command:
        for name in reversed(names):
            text, flag = first_sentence(texts.get(name, "")), f"--{name.replace('_', '-')}"
            if name in GROUPS:
                text += _shown(GROUPS[name][0])
            elif defaults[name] is not None and not isinstance(defaults[name], bool):
                text += f"  [default: {defaults[name] if str(defaults[name]).strip() else repr(defaults[name])}]"
            if isinstance(defaults[name], bool):
                option = click.option(flag, is_flag=True, default=None, help=text)
            elif name in CHOICES:
                option = click.option(flag, type=click.Choice(CHOICES[name]), help=text)
            elif name in GROUPS and name in SWITCHES:
                option = click.option(flag, type=SearchOption(name), is_flag=False, flag_value="true", help=text)
            else:
                option = click.option(flag, type=SearchOption(name), help=text)
            command = option(command)
        return command

    return add


def _shown(group: type) -> str:
    """Return a sentence for the help with a group's options and their defaults; "" for a group of one option."""
    defaults = ((field.name, field.default) for field in fields(group))
    values = ((name, "/".join(map(str, value)) if isinstance(value, tuple) else value) for name, value in defaults)
    shown = ", ".join(f"{name}={value}" for name, value in values if value is not None)
    return f" Options: {shown}." if fields(group)[1:] else ""


allow_partial = click.option(
    "--allow-partial",
    is_flag=True,
    help="Keep queries that were reranked only in part, because of a deadline or of documents without a score.",
)
run_form = click.option(
    "--format",
    "form",
    type=click.Choice(["trec", "msmarco"]),
    default="trec",
    show_default=True,
    help="TREC's six columns, or the three of MS MARCO's submissions: query id, document id, rank.",
)


def rerank_options(command: Command) -> Command:
    """Add the options of a reranked search to a command; `rerank_arguments` reads them."""
    switch = click.option("--rerank/--no-rerank", "do_rerank", default=True, help="Rerank, or keep BM25's order.")
    return switch(search_options(*SEARCHING)(command))


def rerank_arguments(options: Mapping[str, Any]) -> RerankOptions | bool:
    """Return the ``rerank`` argument of a search: the options of the command line, or False for none."""
    arguments = {field.name: options[field.name] for field in fields(Rerank) if options.get(field.name) is not None}
    if not options["do_rerank"]:
        arguments = {name: arguments[name] for name in ("rm3", "query_fields") if name in arguments}
        return cast("RerankOptions", {"pipeline": NO_STAGES, **arguments}) if arguments else False
    return cast("RerankOptions", arguments)


def open_client(
    context: click.Context,
    *,
    warm: bool = False,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
    **options: Any,
) -> Client:
    """Return a client with the global options; it reranks all its searches and has no default deadline.

    Args:
        context: the command's context, which has the global options.
        warm: whether to load the models now.
        settings: the settings that the command itself determines.
        model: the model to use instead of that of the global option.
        options: further arguments of `Client`.
    """
    global_options = {**context.obj, "model": model or context.obj["model"]}
    all_settings = Settings.load(
        **{name: global_options[name] for name in ("url", *MODEL_SETTINGS)}, **(settings or {})
    )
    defaults = Defaults.load(all_settings, model=global_options["model"]).without_traffic()
    models = RerankService(all_settings, has_index=True)
    client = Client(models=models, defaults=defaults, **{**connection_options(all_settings), **options})
    client.searcher.deadline_ms = None
    if (named := context.obj["model"]) and model is None and (own_models := Defaults.load(all_settings).models):
        click.echo(
            f"--model {named} is used instead of the settings file's models of {', '.join(own_models)}", err=True
        )
    if warm:
        client.warm_up()
    return client


def wants_json(context: click.Context) -> bool:
    """Return whether the global option --json is given."""
    return bool(context.obj["as_json"])
