"""``osrerank pipeline``: the engine itself reranks, by calling ``osrerank serve``."""

import json
from contextlib import closing
from typing import Any

import click

from osrerank.cli.options import open_client, wants_json
from osrerank.types.engine import Engine

name_option = click.option(
    "--name",
    default="osrerank",
    show_default=True,
    help="The search pipeline's name; on Elasticsearch, the inference endpoint's.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask before what is installed is changed or removed.")
SECONDS = click.IntRange(1, 600)
OF_OPENSEARCH = ("oversample", "connect_timeout", "read_timeout", "retries", "connections", "template")
"""Options of ``install`` that only OpenSearch has."""


@click.group()
def pipeline() -> None:
    """Let OpenSearch or Elasticsearch rerank by itself, calling osrerank serve."""


@pipeline.command()
@click.option("--server", required=True, help="osrerank serve, as the cluster's nodes reach it: http://host:port.")
@name_option
@click.option("--index", help="Index, alias or pattern whose mapping shows which fields the model reads.")
@click.option("--fields", help="Fields that the model reads, comma-separated.  [default: those found in --index]")
@click.option(
    "--oversample",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Rerank this many times the page's size.",
)
@click.option("--connect-timeout", default=2, show_default=True, type=SECONDS, help="Seconds to connect to the server.")
@click.option(
    "--read-timeout", default=8, show_default=True, type=SECONDS, help="Seconds to wait for the server's answer."
)
@click.option(
    "--retries", default=0, show_default=True, type=click.IntRange(0, 10), help="Repeat calls answered 429 or 5xx."
)
@click.option(
    "--connections", default=30, show_default=True, type=click.IntRange(1), help="Open connections of each node."
)
@click.option("--template", metavar="NAME", help="Make a search template that searches and reranks by a text alone.")
@click.option("--dry-run", is_flag=True, help="Only show what would be made.")
@yes_option
@click.pass_context
def install(context: click.Context, /, *, dry_run: bool, yes: bool, **options: Any) -> None:
    """Set up model and search pipeline in the cluster of --url; again to change them.

    No cluster setting is changed: the request that sets what is missing is shown, and must be sent first. A server with
    a token is called with the one in OSRERANK_SERVER_TOKEN.

    On Elasticsearch, an inference endpoint is set up, and the search that uses it is shown. There, only --server,
    --name, --index, --fields (with one field), --dry-run and --yes can be used.
    """
    engine = _engine(context)
    installer = _installer(context, engine, options["name"])
    spec = _spec_of(context, engine, options)
    steps = installer.plan(spec)
    settings = installer.required_settings(spec) if steps else {}
    if settings:
        click.echo(f"PUT _cluster/settings\n{json.dumps(settings, indent=2)}")
    if settings and not dry_run:
        from osrerank.errors import InstallError

        raise InstallError(
            f"the cluster's settings do not let it call {spec.server}: send it the request above, then install again"
        )
    for step in steps:
        click.echo(step)
    if dry_run:
        return
    if steps and installer.find() is not None:
        _confirm(context, f"Change the {installer.kind} {options['name']}?", yes=yes)
    installer.install(spec)
    click.echo(f"{'' if steps else 'Nothing to do: '}The {installer.kind} {options['name']} works. A search with it:")
    click.echo(installer.search(spec))


@pipeline.command()
@name_option
@click.option("--index", default="", help="Index or alias that must have the fields.  [default: the installation's]")
@click.pass_context
def status(context: click.Context, /, name: str, index: str) -> None:
    """Show what is installed and whether it scores a pair; exit code 1 when it does not, or fields are missing."""
    found = _installer(context, _engine(context), name).status(index)
    if wants_json(context):
        click.echo(json.dumps(found, indent=2))
    else:
        for key, value in found.items():
            click.echo(f"{key}: {value}")
    is_well = found["installed"] and found["failure"] is None
    context.exit(0 if is_well and not (found.get("drifted") or found.get("missing_fields")) else 1)


@pipeline.command()
@name_option
@yes_option
@click.pass_context
def remove(context: click.Context, /, name: str, *, yes: bool) -> None:
    """Remove pipeline, model and templates, or the endpoint, and what an interrupted installation left."""
    installer = _installer(context, _engine(context), name)
    if installer.find() is not None:
        _confirm(context, f"Remove the {installer.kind} {name}?", yes=yes)
    for step in installer.remove() or [f"There is no {installer.kind} {name}."]:
        click.echo(step)


def _confirm(context: click.Context, question: str, *, yes: bool) -> None:
    """Ask before what is installed is changed; end the command with exit code 1 if the answer is no."""
    if not yes and not click.confirm(question):
        click.echo("Nothing was changed.", err=True)
        context.exit(1)


def _engine(context: click.Context) -> Engine:
    """Return the engine behind --url, which must be a server's."""
    from osrerank.client import embedded_folder
    from osrerank.errors import ConfigError
    from osrerank.settings import Settings

    if embedded_folder(Settings.load(url=context.obj["url"])) is not None:
        raise ConfigError("the embedded engine has no pipelines: set --url to a server", setting="url", source="flag")
    with closing(open_client(context)) as client:
        return client.engine


def _installer(context: click.Context, engine: Engine, name: str) -> Any:
    from opensearchpy import OpenSearch

    from osrerank.client import server_options
    from osrerank.server.elasticsearch import install as elasticsearch
    from osrerank.server.opensearch import install as opensearch
    from osrerank.settings import Settings

    client = OpenSearch(**server_options(Settings.load(url=context.obj["url"])))
    return (elasticsearch if engine.reranks_by_endpoint else opensearch).Installer(client, name)


def _spec_of(context: click.Context, engine: Engine, options: dict[str, Any]) -> Any:
    from urllib.parse import urlsplit

    from osrerank.errors import ConfigError
    from osrerank.server.elasticsearch import install as elasticsearch
    from osrerank.server.fields import choose_fields
    from osrerank.server.opensearch import install as opensearch
    from osrerank.server.opensearch.ml_commons import CallLimits
    from osrerank.settings import Settings

    for name in OF_OPENSEARCH if engine.reranks_by_endpoint else ():
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            reason = f"leave out --{name.replace('_', '-')}: Elasticsearch's inference endpoints have no such setting"
            raise ConfigError(reason, setting=name, source="flag")
    server = options["server"].rstrip("/")
    if urlsplit(server).scheme not in ("http", "https") or not urlsplit(server).hostname:
        raise ConfigError(f"--server is {server!r}; it must be http(s)://host:port", setting="server", source="flag")
    fields = tuple(name.strip() for name in (options["fields"] or "").split(",") if name.strip())
    if options["fields"] is not None and not fields:
        raise ConfigError("--fields names no field", setting="fields", source="flag")
    if not fields and not options["index"]:
        reason = "which fields is the model to read? name them with --fields, or their index with --index"
        raise ConfigError(reason, setting="fields", source="flag")
    if options["index"]:
        with closing(open_client(context)) as client:
            fields = choose_fields(client, options["index"], fields)
    token = Settings.load().server_token
    secret = None if token is None else token.get_secret_value()
    if not engine.reranks_by_endpoint:
        bounds = CallLimits(*(options[name] for name in ("connect_timeout", "read_timeout", "retries", "connections")))
        rest = (options["oversample"], secret, bounds, options["template"], options["index"] or "")
        return opensearch.PipelineSpec(server, fields, *rest)
    if len(fields) > 1:
        reason = f"Elasticsearch's retriever reads one field, not {', '.join(fields)}: name one with --fields"
        raise ConfigError(reason, setting="fields", source="flag")
    return elasticsearch.EndpointSpec(server, fields[0], secret, options["index"] or "")
