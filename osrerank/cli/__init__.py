"""The command line. Each command is a module of its own, which is imported when the command is used."""

import importlib
import re
import sys
from collections import Counter
from importlib.metadata import entry_points
from typing import Any

import click

from osrerank._removed import replacement_for
from osrerank._signals import end_as_first_process
from osrerank.errors import ConfigError, OsrerankError
from osrerank.scoring.names import DTYPES, NAMES

# name -> "module:attribute". Importing a module must stay cheap: heavy libraries are imported inside the command.
COMMANDS = {
    "advise": "osrerank.cli.advise:advise",
    "calibrate": "osrerank.cli.calibrate:calibrate",
    "demo": "osrerank.cli.demo:demo",
    "distill": "osrerank.cli.distill:distill",
    "doctor": "osrerank.cli.doctor:doctor",
    "evaluate": "osrerank.cli.evaluate:evaluate",
    "export": "osrerank.cli.export:export",
    "init": "osrerank.cli.init:init",
    "interleave": "osrerank.cli.interleave:interleave",
    "pipeline": "osrerank.cli.pipeline:pipeline",
    "pretrain": "osrerank.cli.pretrain:pretrain",
    "reproduce": "osrerank.cli.reproduce:reproduce",
    "rerank": "osrerank.cli.rerank:rerank",
    "run": "osrerank.cli.run:run",
    "search": "osrerank.cli.search:search",
    "serve": "osrerank.cli.serve:serve",
    "shadow": "osrerank.cli.shadow:shadow",
    "vectors": "osrerank.cli.vectors:vectors",
    "tradeoff": "osrerank.cli.tradeoff:tradeoff",
    "train": "osrerank.cli.train:train",
    "tune": "osrerank.cli.tune:tune",
}
GROUP = "osrerank.commands"
FAILED, BAD_USAGE = 1, 2


class LazyGroup(click.Group):
    """A group whose commands are imported when used; other packages add commands as entry points."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return sorted({*COMMANDS, *(entry.name for entry in entry_points(group=GROUP))})

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the group's options; refuse any option that is set twice, also among the options of the command."""
        arguments = list(args)
        remaining = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            _refuse_repeated(self, ctx, arguments)
        return remaining

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        for entry in entry_points(group=GROUP, name=cmd_name):
            loaded: click.Command = entry.load()
            return loaded
        if fix := replacement_for(f"osrerank {cmd_name}"):
            raise click.UsageError(f"There is no command {cmd_name!r}; {fix}", ctx)
        return None


def _refuse_repeated(command: click.Command, context: click.Context, arguments: list[str]) -> None:
    """Refuse an option of a command or subcommand that is set twice; click would silently use the last value."""
    try:
        _values, remaining, order = command.make_parser(context).parse_args(arguments)
    except click.UsageError:
        return  # the command itself reports the error
    for option, times in Counter(order).items():
        if times == 1 or not isinstance(option, click.Option) or option.multiple or option.count:
            continue
        if option.secondary_opts or not option.is_flag:  # a repeated flag contradicts nothing
            names = "/".join([*option.opts, *option.secondary_opts])
            raise click.UsageError(f"{names} is set {times} times; set it once", context)
    if isinstance(command, click.Group) and remaining:
        subcommand = command.get_command(context, remaining[0])
        if subcommand is not None:
            _refuse_repeated(subcommand, click.Context(subcommand, context, info_name=remaining[0]), remaining[1:])


def _checked(backend: str) -> str:
    from osrerank.scoring.registry import check_backend

    return check_backend(backend)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="osrerank")
@click.option("--url", help="Index: http(s)://host:port or embedded:FOLDER.  [env: OSRERANK_URL]")
@click.option("--redis-url", help="Redis of the score cache and of the workers' queue.  [env: OSRERANK_REDIS_URL]")
@click.option("--model", help="Model: directory, hub id or shipped name.  [env: OSRERANK_MODEL]")
@click.option("--vector-model", help="Bi-encoder, if --model is a cross-encoder.  [env: OSRERANK_VECTOR_MODEL]")
@click.option("--duo-model", help="Model that compares pairs, in mono-duo and vectors-duo.  [env: OSRERANK_DUO_MODEL]")
@click.option(
    "--backend",
    callback=lambda _context, _option, value: value and _checked(value),
    help=f"Scoring backend: {', '.join(NAMES)}.  [env: OSRERANK_BACKEND]",
)
@click.option("--dtype", help=f"Number type of the torch backend: {', '.join(DTYPES)}.  [env: OSRERANK_DTYPE]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Rerank OpenSearch or Elasticsearch results with BERT."""
    ctx.obj = options


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; print an error as one sentence, and exit with 1 after a failure or 2 after wrong usage."""
    end_as_first_process()
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(arguments, standalone_mode=False)
    except click.ClickException as error:
        _with_fix(error).show()
        sys.exit(BAD_USAGE)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("Interrupted.", err=True)
        sys.exit(130)
    except Exception as error:
        if "--debug" in arguments:
            raise
        click.echo(f"Error: {_sentence(error)}", err=True)
        sys.exit(BAD_USAGE if isinstance(error, ConfigError) else FAILED)
    if isinstance(code, int) and code:  # the code that a command passed to ctx.exit
        sys.exit(code)


def _with_fix(error: click.ClickException) -> click.ClickException:
    """Return the error; if the option or command was removed, return an error that says what to use instead."""
    if not isinstance(error, click.UsageError) or error.ctx is None:
        return error
    command = error.ctx.command_path.removeprefix(error.ctx.find_root().command_path).strip()
    if isinstance(error, click.NoSuchOption) and (fix := replacement_for(f"osrerank {command} {error.option_name}")):
        return click.UsageError(f"No such option {error.option_name}; {fix}.", error.ctx)
    _, _, name = error.message.partition("No such command ")
    if fix := replacement_for(f"osrerank {command} {name.strip(chr(39) + '.')}"):
        return click.UsageError(f"No such command {name.rstrip('.')}; {fix}.", error.ctx)
    return error


def _extra_of(module: str) -> str:
    """Return the smallest extra of osrerank that installs a module; "" if none does."""
    from importlib.metadata import requires

    distribution, extras = module.partition(".")[0].replace("_", "-").lower(), Counter[str]()
    installing = set()
    for requirement in requires("osrerank") or ():
        name = re.split(r"[^\w.-]", requirement.replace("_", "-").lower(), maxsplit=1)[0]
        for extra in re.findall(r"extra == ['\"]([\w-]+)", requirement):
            extras[extra] += 1
            installing |= {extra} if name == distribution else set()
    return min(installing, key=lambda extra: (extras[extra], extra), default="")


def _sentence(error: Exception) -> str:
    """Describe an error in one line for people; the class of another library's error comes first."""
    if isinstance(error, OsrerankError):
        return str(error)
    if isinstance(error, ModuleNotFoundError) and (extra := _extra_of(error.name or "")):
        return f"this needs the Python package {error.name}, which is not installed: pip install 'osrerank[{extra}]'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
    name = type(error).__name__
    if first_line.startswith(f"{name}("):  # opensearch-py's errors start with their own name and end with their cause
        from osrerank.doctor import engine_fix

        fix = engine_fix(error, not_found_fix="")
        cause_left_out = f"{first_line.partition(' caused by: ')[0]}{f': {fix}' if fix else ''}"
        return f"{cause_left_out} (run with --debug for the traceback)"
    return f"{name}: {first_line} (run with --debug for the traceback)"
