"""Run the command ``osrerank``: find the subcommand, and print errors. Each subcommand is a module in this folder."""

import importlib
import io
import re
import sys
from collections import Counter
from importlib.metadata import entry_points
from typing import Any

import click

from osrerank._removed import find_replacement
from osrerank._signals import end_as_first_process
from osrerank.errors import ConfigError, OsrerankError
from osrerank.scoring.names import BACKEND_NAMES, DTYPES

COMMANDS = (
    "advise", "calibrate", "demo", "distill", "doctor", "evaluate", "export", "init", "interleave", "pipeline",
    "pretrain", "reproduce", "rerank", "run", "search", "serve", "shadow", "tradeoff", "train", "tune", "vectors",
)  # fmt: skip
"""The commands. Each is a function in the module of the same name, such as ``demo`` in `osrerank.cli.demo`.

The functions import heavy libraries only when they run, so that ``--help`` is fast.
"""
ENTRY_POINT_GROUP = "osrerank.commands"
"""Other packages add commands as entry points of this group."""
EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
"""The exit code that shells give a program that was ended by Ctrl-C: 128 and the number of SIGINT."""


class LazyGroup(click.Group):
    """A group that imports a command only when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted({*COMMANDS, *(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's options, and check that no option of the group or the command is set twice."""
        arguments = list(args)
        remaining = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _refuse_repeated_options(self, ctx, arguments)
        return remaining

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. The error for a removed command says what replaces it."""
        if cmd_name in COMMANDS:
            command: click.Command = getattr(importlib.import_module(f"osrerank.cli.{cmd_name}"), cmd_name)
            return command
        for entry in entry_points(group=ENTRY_POINT_GROUP, name=cmd_name):
            loaded: click.Command = entry.load()
            return loaded
        replacement = find_replacement(f"osrerank {cmd_name}")
        if replacement:
            raise click.UsageError(f"There is no command {cmd_name!r}; {replacement}", ctx)
        return None


def _refuse_repeated_options(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Refuse options of a command or its subcommands that are set twice. click itself would use the last value."""
    try:
        _values, remaining, options_in_order = command.make_parser(context).parse_args(arguments)
    except click.UsageError:
        return  # click reports the error later
    for option, times in Counter(options_in_order).items():
        if times == 1 or not isinstance(option, click.Option) or option.multiple or option.count:
            continue
        can_only_be_on = option.is_flag and not option.secondary_opts  # so --debug --debug is harmless
        if not can_only_be_on:
            names = "/".join([*option.opts, *option.secondary_opts])
            raise click.UsageError(f"{names} is set {times} times; set it once", context)
    if isinstance(command, click.Group) and remaining:
        name, *arguments = remaining
        subcommand = command.get_command(context, name)
        if subcommand is not None:
            _refuse_repeated_options(subcommand, click.Context(subcommand, context, info_name=name), arguments)


def _validate_backend(_context: click.Context, _option: click.Parameter, backend: str | None) -> str | None:
    from osrerank.scoring.registry import check_backend

    return check_backend(backend) if backend else backend


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="osrerank")
@click.option("--url", help="Search engine: http(s)://host:port or embedded:FOLDER.  [env: OSRERANK_URL]")
@click.option("--redis-url", help="Redis for the score cache and the workers' queue.  [env: OSRERANK_REDIS_URL]")
@click.option("--model", help="Model: directory, hub id or shipped name.  [env: OSRERANK_MODEL]")
@click.option("--vector-model", help="Bi-encoder, if --model is a cross-encoder.  [env: OSRERANK_VECTOR_MODEL]")
@click.option("--duo-model", help="Model that compares pairs, in mono-duo and vectors-duo.  [env: OSRERANK_DUO_MODEL]")
@click.option(
    "--backend",
    callback=_validate_backend,
    help=f"Scoring backend: {', '.join(BACKEND_NAMES)}.  [env: OSRERANK_BACKEND]",
)
@click.option("--dtype", help=f"Precision of the torch backend: {', '.join(DTYPES)}.  [env: OSRERANK_DTYPE]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Rerank OpenSearch or Elasticsearch results with BERT."""
    ctx.obj = options


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error is printed in one sentence; the exit code is then 1, or 2 for wrong usage."""
    end_as_first_process()  # so that SIGTERM ends a container
    if isinstance(sys.stdout, io.TextIOWrapper):  # texts can have characters that this encoding lacks
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        _with_replacement(error).show()
        sys.exit(EXIT_USAGE)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except Exception as error:
        if "--debug" in arguments:
            raise
        click.echo(f"Error: {_describe_error(error)}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, ConfigError) else EXIT_FAILURE)
    if isinstance(code, int) and code:  # click returns the code of a command that calls ctx.exit
        sys.exit(code)


def _with_replacement(error: click.ClickException) -> click.ClickException:
    """Return an error that says what to use instead, if the error is about a removed option or command."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error
    command = error.ctx.command_path.removeprefix(error.ctx.find_root().command_path).strip()
    if isinstance(error, click.NoSuchOption):
        replacement = find_replacement(f"osrerank {command} {error.option_name}")
        reason = f"No such option {error.option_name}"
    else:
        quoted_name = error.message.partition("No such command ")[2].rstrip(".")  # such as 'foo', with the quotes
        name = quoted_name.strip("'")
        replacement = find_replacement(f"osrerank {command} {name}")
        reason = f"No such command {quoted_name}"
    return click.UsageError(f"{reason}; {replacement}.", error.ctx) if replacement else error


def _find_extra(module: str) -> str:
    """Return the extra of osrerank that installs a module, such as ``eval`` for ``scipy.stats``, or "" if none does.

    If several extras install the module, the one with the fewest packages is returned.
    """
    from importlib.metadata import requires

    distribution = module.partition(".")[0].replace("_", "-").lower()
    package_counts = Counter[str]()
    candidates = set()
    for requirement in requires("osrerank") or ():  # such as: scipy>=1.11; extra == 'eval'
        name = re.split(r"[^\w.-]", requirement.replace("_", "-").lower(), maxsplit=1)[0]
        for extra in re.findall(r"extra == ['\"]([\w-]+)", requirement):
            package_counts[extra] += 1
            if name == distribution:
                candidates.add(extra)
    return min(candidates, key=lambda extra: (package_counts[extra], extra), default="")


def _describe_error(error: Exception) -> str:
    """Describe an error in one line. An unexpected error of another library is described with its class."""
    if isinstance(error, OsrerankError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        extra = _find_extra(error.name or "")
        if extra:
            return (
                f"this needs the Python package {error.name}, which is not installed: pip install 'osrerank[{extra}]'"
            )
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    hint = "(run with --debug for the traceback)"
    message = str(error).strip()
    first_line = message.splitlines()[0] if message else "no message"
    name = type(error).__name__
    is_engine_error = first_line.startswith(f"{name}(")  # opensearch-py's errors begin with their class
    if not is_engine_error:
        return f"{name}: {first_line} {hint}"
    from osrerank.doctor import choose_engine_fix

    description = first_line.partition(" caused by: ")[0]  # the errors can end with their cause
    fix = choose_engine_fix(error, not_found_fix="")
    return f"{description}: {fix} {hint}" if fix else f"{description} {hint}"
