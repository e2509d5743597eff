"""The command-line options that several commands share, and `open_client`, which applies the global options."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import click

from osrerank._removed import find_replacement
from osrerank.cli.path_types import OUTPUT_FILE
from osrerank.client import Client, connection_options
from osrerank.errors import ConfigError
from osrerank.options.defaults import Defaults
from osrerank.options.descriptions import first_sentence, read_descriptions
from osrerank.options.rerank import BLENDS, GROUPS, MAX_MS, NO_STAGES, PIPELINES, Rerank, RerankOptions
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.settings_file import read_file
from osrerank.types import FailurePolicy

DURATION_MS = click.FloatRange(0, MAX_MS, min_open=True)
Command = TypeVar("Command", bound=Callable[..., Any])

MODEL_OPTIONS = ("redis_url", "model", "vector_model", "duo_model", "backend", "dtype")
"""The global options by which models are loaded."""
RANKING_OPTIONS = (
    "pipeline", "depth", "mono_depth", "duo_depth", "pairs", "blend", "blend_weight", "passages", "sentences",
)  # fmt: skip
"""The search options that determine how candidates are ranked."""
SEARCH_OPTIONS = (*RANKING_OPTIONS, "fields", "query_fields", "separator", "rm3", "deadline_ms", "on_failure")
"""All search options of ``osrerank search`` and ``osrerank run``."""
FIRST_PASS_OPTIONS = ("rm3", "query_fields")
"""The search options that change the first pass. With ``--no-rerank``, all other search options are ignored."""
OPTION_CHOICES = {"pipeline": PIPELINES, "blend": BLENDS, "on_failure": get_args(FailurePolicy)}
NAME_LIST_OPTIONS = ("fields", "query_fields")
"""These options' values are names separated by commas, such as ``--fields title,body``."""
OPTIONS_WITH_OPTIONAL_VALUE = ("sentences", "rm3")
"""These options can be set without a value, such as ``--rm3``."""


class IndexParam(click.ParamType[str]):
    """The type of a parameter that names an index."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse an empty name, such as that of an unset shell variable. An engine would search all indices."""
        if not value.strip():
            self.fail("the name of the index is empty", param, ctx)
        return value


INDEX = IndexParam()


class CheckpointParam(click.ParamType[Path]):
    """The type of a parameter that names a model: a directory, a hub id or a shipped model, in any weight format."""

    name = "checkpoint"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:  # noqa: ARG002 - click's
        """Return the directory of the model. A model on the hub is downloaded."""
        from osrerank.scoring.locate import locate
        from osrerank.scoring.registry import list_weight_patterns

        # README.md is downloaded too, because it lists the languages that the model supports
        return locate(str(value), weight_patterns=list_weight_patterns("torch"), extra_files=("README.md",))


class ModelParam(CheckpointParam):
    """As `CheckpointParam`, but pickled and TensorFlow weights are converted, so that the model can be trained."""

    name = "model"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the directory of the model, or of the converted model."""
        from osrerank.scoring.checkpoints.convert import convert_if_needed

        return convert_if_needed(super().convert(value, param, ctx)).directory


CHECKPOINT = CheckpointParam()
MODEL = ModelParam()


def split_options(value: str, default_name: str = "") -> dict[str, str]:
    """Split a value into options, such as ``maxp,limit=5`` into ``{"aggregation": "maxp", "limit": "5"}``.

    If the first part has no name, it sets ``default_name``, which is ``aggregation`` in this example.
    """
    options: dict[str, str] = {}
    for index, part in enumerate(value.split(",")):
        name, equals, content = part.strip().partition("=")
        if default_name and index == 0 and not equals:
            name, content = default_name, name
        elif not (equals and name and content):
            raise click.BadParameter(f"{part!r} is not NAME=VALUE")
        if name in options:
            raise click.BadParameter(f"{name} is set twice; set it once")
        options[name] = content
    return options


def option_parser(default_name: str) -> Callable[..., dict[str, Any] | None]:
    """Return a click callback that parses a value such as ``maxp,limit=5`` with `split_options`."""

    def parse(_context: click.Context, _parameter: click.Parameter, value: str | None) -> dict[str, Any] | None:
        if value is None:
            return None
        return {name: _parse_value(content) for name, content in split_options(value, default_name).items()}

    return parse


def _parse_value(content: str) -> Any:
    """Parse true, false, a number, or a list with slashes such as ``1/0.5``. Return other content as a string."""
    if content in ("true", "false"):
        return content == "true"
    if "/" in content:
        return [_parse_value(part) for part in content.split("/")]
    for number_type in (int, float):
        try:
            return number_type(content)
        except ValueError:
            continue
    return content


class SearchOption(click.ParamType[Any]):
    """The type of a parameter that sets an option of `Rerank`, which checks the value.

    An option such as ``passages`` is a group of options, with a value such as ``maxp,limit=5``.
    """

    name = "text"

    def __init__(self, option: str) -> None:
        self.option = option
        self.group = None
        if option in GROUPS:
            self.group, _default, _parse = GROUPS[option]
        # A group's first option can be set without its name.
        self.default_name = fields(self.group)[0].name if self.group else ""
        self.type_hint = get_type_hints(Rerank)[option]

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Describe the possible values, such as ``INTEGER|auto``."""
        if self.group:
            name = self.default_name.upper()
            return f"{name},NAME=VALUE" if len(fields(self.group)) > 1 else name
        labels = {int: "INTEGER", float: "NUMBER", str: "TEXT", tuple[str, ...]: "NAME,NAME"}
        is_union = get_origin(self.type_hint) in (Union, UnionType)
        alternatives = get_args(self.type_hint) if is_union else (self.type_hint,)
        parts = []
        for alternative in alternatives:
            if alternative in labels:
                parts.append(labels[alternative])
            elif alternative is not type(None):
                parts.append("|".join(get_args(alternative)))  # the strings of a Literal
        return "|".join(parts)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse and check the value."""
        fix = find_replacement(f"rerank.{self.option}.{value}")
        if fix:  # an older version had this value
            self.fail(f"{value!r} was removed; {fix}", param, ctx)
        if self.group is not None and value not in ("true", "false"):  # true and false switch a whole group on or off
            parsed: Any = option_parser(self.default_name)(ctx, param, value)
        elif self.type_hint is str:
            parsed = value
        elif self.option in NAME_LIST_OPTIONS:
            parsed = tuple(name.strip() for name in value.split(","))
        else:
            parsed = _parse_value(value)
        try:
            Rerank.of({self.option: parsed}, Rerank())
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return parsed


def search_options(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds search options to a command. Their help comes from the docstrings of `Rerank`.

    The command passes their values to `build_rerank_argument`.
    """
    descriptions = read_descriptions(Rerank)
    defaults = {field.name: field.default for field in fields(Rerank)}

    def decorate(command: Command) -> Command:
        for name in reversed(names):  # click shows the option that is added last first
            flag = f"--{name.replace('_', '-')}"
            help_text = first_sentence(descriptions.get(name, ""))
            default = defaults[name]
            if name in GROUPS:
                group, _default, _parse = GROUPS[name]
                help_text += _describe_group(group)
            elif default is not None and not isinstance(default, bool):
                shown_default = default if str(default).strip() else repr(default)  # repr shows spaces, as in ' '
                help_text += f"  [default: {shown_default}]"
            if isinstance(default, bool):
                option = click.option(flag, is_flag=True, default=None, help=help_text)
            elif name in OPTION_CHOICES:
                option = click.option(flag, type=click.Choice(OPTION_CHOICES[name]), help=help_text)
            elif name in OPTIONS_WITH_OPTIONAL_VALUE:
                option = click.option(flag, type=SearchOption(name), is_flag=False, flag_value="true", help=help_text)
            else:
                option = click.option(flag, type=SearchOption(name), help=help_text)
            command = option(command)
        return command

    return decorate


def _describe_group(group: type) -> str:
    """Return a sentence such as " Options: limit=5, stride=2." with the defaults, or "" for a group of one option."""
    if len(fields(group)) == 1:
        return ""
    defaults = []
    for field in fields(group):
        value = field.default
        if isinstance(value, tuple):
            value = "/".join(map(str, value))
        if value is not None:
            defaults.append(f"{field.name}={value}")
    return f" Options: {', '.join(defaults)}."


RUN_FORMATS = click.Choice(["trec", "msmarco"])
FORMAT_HELP = "trec has six columns. msmarco has three: query id, document id, rank."
PARTIAL_HELP = "Keep queries that were reranked only in part, because of a deadline or documents without a score."
allow_partial = click.option("--allow-partial", is_flag=True, help=PARTIAL_HELP)
RUN_OPTIONS = (
    click.option("--output", "-o", required=True, type=OUTPUT_FILE, help="Run to write."),
    click.option("--format", "run_format", type=RUN_FORMATS, default="trec", show_default=True, help=FORMAT_HELP),
    click.option("--tag", help="Tag of the run.  [default: the output's name]"),
    click.option("--skip-failed", is_flag=True, help="Write the run without the queries that failed."),
    allow_partial,
)


def run_options(command: Command) -> Command:
    """Add the options for writing a run. The command passes them to `osrerank.cli.batch.run_batch`."""
    for option in reversed(RUN_OPTIONS):
        command = option(command)
    return command


def rerank_options(command: Command) -> Command:
    """Add all search options to a command. The command passes them to `build_rerank_argument`."""
    switch = click.option("--rerank/--no-rerank", "do_rerank", default=True, help="Rerank, or keep BM25's order.")
    return switch(search_options(*SEARCH_OPTIONS)(command))


def build_rerank_argument(options: Mapping[str, Any]) -> RerankOptions | bool:
    """Return the ``rerank`` argument of a search. With ``--no-rerank``, it contains only `FIRST_PASS_OPTIONS`."""
    arguments = {field.name: options[field.name] for field in fields(Rerank) if options.get(field.name) is not None}
    if not options["do_rerank"]:
        arguments = {name: arguments[name] for name in FIRST_PASS_OPTIONS if name in arguments}
        return cast("RerankOptions", {"pipeline": NO_STAGES, **arguments}) if arguments else False
    return cast("RerankOptions", arguments)


def open_client(
    context: click.Context,
    *,
    warm: bool = False,
    settings: Mapping[str, Any] | None = None,
    model: str | None = None,
) -> Client:
    """Return a client for a command. It has no default deadline, and reranks all searches, whatever ``traffic`` says.

    If the global option ``--model`` replaces models of the settings file, a line on standard error says so.

    Args:
        context: the command's context, with the global options.
        warm: whether the models are loaded at once.
        settings: settings by name, in place of those of the environment and the settings file.
        model: the model to use in place of that of the global option ``--model``.
    """
    global_options = {**context.obj, "model": model or context.obj["model"]}
    values = {name: global_options[name] for name in ("url", *MODEL_OPTIONS)}
    all_settings = Settings.load(**values, **(settings or {}))
    defaults = Defaults.load(all_settings, model=global_options["model"]).without_traffic()
    service = RerankService(all_settings, has_index=True)
    client = Client(models=service, defaults=defaults, **connection_options(all_settings))
    client.searcher.deadline_ms = None
    if context.obj["model"] and model is None:
        model_by_index = Defaults.load(all_settings).models  # of the settings file
        if model_by_index:
            indices = ", ".join(model_by_index)
            click.echo(f"--model {context.obj['model']} replaces the settings file's models of {indices}", err=True)
    if warm:
        client.warm_up()
    return client


def open_reranker(context: click.Context) -> RerankService:
    """Return a service that scores texts without an index, with the models of the global options.

    Raises:
        ConfigError: the settings file that the settings name cannot be used, although only some backends need it.
    """
    settings = Settings.load(**{name: context.obj[name] for name in MODEL_OPTIONS})
    if settings.settings_file is not None:
        read_file(settings.settings_file)
    return RerankService(settings)


def wants_json(context: click.Context) -> bool:
    """Return whether the global option ``--json`` is set."""
    return bool(context.obj["as_json"])
