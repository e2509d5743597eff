"""Generate docs/cli.md from the help of the commands.

python tools/pages/cli_page.py > docs/cli.md
"""

from collections.abc import Iterator

import click

from osrerank.cli import cli

INTRODUCTION = """# Command line

Made by `tools/pages/cli_page.py` from the help that each command prints with `--help`. Global options stand before the
command. Exit codes: 0 done, 1 failed, 2 bad usage; errors are one sentence, `--debug` shows the traceback.
"""


def render_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([INTRODUCTION, *_sections(cli, "osrerank", None)])


def _sections(command: click.Command, name: str, parent: click.Context | None) -> Iterator[str]:
    """Yield the section of a command, then those of its subcommands."""
    context = click.Context(command, info_name=name, parent=parent, max_content_width=110)
    yield _section(context.command_path, command.get_help(context))
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None:
                yield from _sections(child, child_name, context)


def _section(heading: str, help_text: str) -> str:
    """Return a section with a command's help, without the option ``--help``."""
    before, _, after = help_text.rpartition("  --help ")
    text = (before + after.partition("\n")[2]).removesuffix("Options:\n").rstrip()
    return f"## {heading}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    print(render_page(), end="")
