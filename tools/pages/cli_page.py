"""Write docs/cli.md from the commands' own help.

python tools/pages/cli_page.py > docs/cli.md
"""

import click

from osrerank.cli import cli

INTRODUCTION = """# Command line

Made by `tools/pages/cli_page.py` from the help that each command prints with `--help`. Global options stand before the
command. Exit codes: 0 done, 1 failed, 2 bad usage; errors are one sentence, `--debug` shows the traceback.
"""


def page() -> str:
    """Return the page."""
    context = click.Context(cli, info_name="osrerank", max_content_width=110)
    parts = [INTRODUCTION, _block("osrerank", cli.get_help(context))]
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        if command is None:
            continue
        below = click.Context(command, info_name=name, parent=context, max_content_width=110)
        parts.append(_block(f"osrerank {name}", command.get_help(below)))
        if isinstance(command, click.Group):
            for sub in command.list_commands(below):
                child = command.get_command(below, sub)
                if child is not None:
                    inner = click.Context(child, info_name=sub, parent=below, max_content_width=110)
                    parts.append(_block(f"osrerank {name} {sub}", child.get_help(inner)))
    return "\n".join(parts)


def _block(heading: str, text: str) -> str:
    own, _, below = text.rpartition("  --help ")
    shown = (own + below.partition("\n")[2]).removesuffix("Options:\n").rstrip()
    return f"## {heading}\n\n```text\n{shown}\n```\n"


if __name__ == "__main__":
    print(page(), end="")
