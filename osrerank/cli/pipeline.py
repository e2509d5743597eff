"""``osrerank pipeline``: let OpenSearch or Elasticsearch rerank by itself, by calling ``osrerank serve``.

OpenSearch gets a search pipeline (`osrerank.server.opensearch.install`), Elasticsearch an inference endpoint
(`osrerank.server.elasticsearch.install`). The ``Installer`` classes of both modules have the same methods.
"""

import json
from contextlib import closing
from typing import Any

import click

from osrerank.cli.options import INDEX, open_client, wants_json
from osrerank.types.engine import Engine

name_option = click.option("--name", default="osrerank", show_default=True, help="Name of the pipeline or endpoint.")
yes_option = click.option("--yes", is_flag=True, help="Change or remove an installation without asking.")
SECONDS = click.IntRange(1, 600)
CALL_LIMITS = ("connect_timeout", "read_timeout", "retries", "connections")
"""The options of ``install`` that limit the cluster's calls to the server: the fields of `CallLimits`, in order."""
OPENSEARCH_OPTIONS = ("oversample", *CALL_LIMITS, "template")
"""The options of ``install`` that do not apply to Elasticsearch."""


@click.group()
def pipeline() -> None:
    """Let OpenSearch or Elasticsearch rerank by itself, calling osrerank serve."""


@pipeline.command()
@click.option("--server", required=True, help="URL at which the cluster reaches osrerank serve: http://host:port.")
@name_option
@click.option("--index", type=INDEX, help="Index, alias or pattern whose mapping determines the fields.")
@click.option("--fields", help="The model's input fields, comma-separated.  [default: the text fields of --index]")
@click.option(
    "--oversample",
    default=1.0,
    show_default=True,
    type=click.FloatRange(1),
    help="Hits to rerank, as a multiple of the page's size.",
)
@click.option("--connect-timeout", default=2, show_default=True, type=SECONDS, help="Seconds to connect to the server.")
@click.option("--read-timeout", default=8, show_default=True, type=SECONDS, help="Seconds to wait for a response.")
@click.option("--retries", default=0, show_default=True, type=click.IntRange(0, 10), help="Retries after 429 or 5xx.")
@click.option("--connections", default=30, show_default=True, type=click.IntRange(1), help="Connections of each node.")
@click.option("--template", metavar="NAME", help="Also create a search template that only needs the query text.")
@click.option("--dry-run", is_flag=True, help="Only show what would be created.")
@yes_option
@click.pass_context
def install(context: click.Context, /, *, dry_run: bool, yes: bool, **options: Any) -> None:
    """Install a model and a search pipeline on the cluster of --url, or change them.

    Cluster settings are not changed. If some are missing, the command prints the request that sets them, and stops. If
    the server needs a token, set OSRERANK_SERVER_TOKEN to it.

    On Elasticsearch, an inference endpoint is installed instead, and the search that uses it is printed. There, only
    --server, --name, --index, --fields (with one field), --dry-run and --yes can be used.
    """
    engine = _find_engine(context)
    installer = _create_installer(context, engine, options["name"])
    spec = _create_spec(context, engine, options)
    steps = installer.plan(spec)  # a sentence for each change, or none if everything is installed
    missing_settings = installer.find_missing_settings(spec) if steps else {}
    if missing_settings:
        click.echo(f"PUT _cluster/settings\n{json.dumps(missing_settings, indent=2)}")
        if not dry_run:
            from osrerank.errors import InstallError

            reason = f"the cluster's settings do not let the cluster call {spec.server}"
            raise InstallError(f"{reason}: send the request above to the cluster, then run this command again")
    for step in steps:
        click.echo(step)
    if dry_run:
        return
    if steps and installer.find() is not None:
        _confirm(context, f"Change the {installer.kind} {options['name']}?", yes=yes)
    installer.install(spec)
    prefix = "" if steps else "Nothing to do: "
    click.echo(f"{prefix}The {installer.kind} {options['name']} works. A search with it:")
    click.echo(installer.example_search(spec))


@pipeline.command()
@name_option
@click.option("--index", default="", help="Index or alias whose fields are checked.  [default: the --index of install]")
@click.pass_context
def status(context: click.Context, /, name: str, index: str) -> None:
    """Show what is installed, and whether it works. The exit code is 1 if it does not, or if the index lacks fields."""
    report = _create_installer(context, _find_engine(context), name).status(index)
    if wants_json(context):
        click.echo(json.dumps(report, indent=2))
    else:
        for key, value in report.items():
            click.echo(f"{key}: {value}")
    works = report["installed"] and report["failure"] is None
    has_problems = report.get("drifted") or report.get("missing_fields")  # drifted: not what this version installs
    context.exit(0 if works and not has_problems else 1)


@pipeline.command()
@name_option
@yes_option
@click.pass_context
def remove(context: click.Context, /, name: str, *, yes: bool) -> None:
    """Remove the pipeline, model and templates, or the endpoint, and what interrupted installations left."""
    installer = _create_installer(context, _find_engine(context), name)
    if installer.find() is not None:
        _confirm(context, f"Remove the {installer.kind} {name}?", yes=yes)
    for step in installer.remove() or [f"There is no {installer.kind} {name}."]:
        click.echo(step)


def _confirm(context: click.Context, question: str, *, yes: bool) -> None:
    """Ask whether to change or remove an installation. If the user declines, exit with code 1."""
    if not yes and not click.confirm(question):
        click.echo("Nothing was changed.", err=True)
        context.exit(1)


def _find_engine(context: click.Context) -> Engine:
    from osrerank.client import embedded_folder
    from osrerank.errors import ConfigError
    from osrerank.settings import Settings

    if embedded_folder(Settings.load(url=context.obj["url"])) is not None:
        raise ConfigError(
            "the embedded engine has no search pipelines: set --url to an OpenSearch or Elasticsearch server",
            setting="url",
            source="flag",
        )
    with closing(open_client(context)) as client:
        return client.engine


def _create_installer(context: click.Context, engine: Engine, name: str) -> Any:
    from opensearchpy import OpenSearch

    from osrerank.client import server_options
    from osrerank.server.elasticsearch import install as elasticsearch
    from osrerank.server.opensearch import install as opensearch
    from osrerank.settings import Settings

    client = OpenSearch(**server_options(Settings.load(url=context.obj["url"])))
    module = elasticsearch if engine.reranks_by_endpoint else opensearch
    return module.Installer(client, name)


def _check_server(url: str) -> str:
    """Return the server's URL without a slash at the end, if the cluster can call it and may store it."""
    from urllib.parse import urlsplit

    from osrerank.errors import ConfigError

    address = urlsplit(url)
    if address.username is not None:
        reason = "--server contains a user or a password: leave them out; set OSRERANK_SERVER_TOKEN if it needs a token"
        raise ConfigError(reason, setting="server", source="flag")
    if address.scheme not in ("http", "https") or not address.hostname:
        raise ConfigError(f"--server is {url!r}; it must be http(s)://host:port", setting="server", source="flag")
    return url.rstrip("/")


def _create_spec(context: click.Context, engine: Engine, options: dict[str, Any]) -> Any:
    """Check the options, and return a `PipelineSpec` for OpenSearch or an `EndpointSpec` for Elasticsearch."""
    from osrerank.errors import ConfigError
    from osrerank.server.elasticsearch import install as elasticsearch
    from osrerank.server.fields import choose_fields
    from osrerank.server.opensearch import install as opensearch
    from osrerank.server.opensearch.ml_commons import CallLimits
    from osrerank.settings import Settings

    if engine.reranks_by_endpoint:
        for name in OPENSEARCH_OPTIONS:
            if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
                flag = f"--{name.replace('_', '-')}"
                reason = f"leave out {flag}: Elasticsearch's inference endpoints have no such setting"
                raise ConfigError(reason, setting=name, source="flag")
    server = _check_server(options["server"])
    fields = tuple(name.strip() for name in (options["fields"] or "").split(",") if name.strip())
    if options["fields"] is not None and not fields:
        raise ConfigError("--fields contains no field: list at least one", setting="fields", source="flag")
    if not fields and not options["index"]:
        reason = "no fields are set: list them with --fields, or set --index to use the fields of an index"
        raise ConfigError(reason, setting="fields", source="flag")
    if options["index"]:
        with closing(open_client(context)) as client:
            fields = choose_fields(client, options["index"], fields)
    token = Settings.load().server_token
    secret = None if token is None else token.get_secret_value()
    if not engine.reranks_by_endpoint:
        return opensearch.PipelineSpec(
            server,
            fields,
            oversample=options["oversample"],
            token=secret,
            limits=CallLimits(*(options[name] for name in CALL_LIMITS)),
            template=options["template"],
            index=options["index"] or "",
        )
    if len(fields) > 1:
        reason = f"Elasticsearch's retriever accepts one field, not {', '.join(fields)}: set --fields to one of them"
        raise ConfigError(reason, setting="fields", source="flag")
    return elasticsearch.EndpointSpec(server, fields[0], secret, options["index"] or "")
