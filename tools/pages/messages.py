"""List what the packages say to people, a line each: where it stands, its kind, its text.

python tools/pages/messages.py | grep "^osrerank/cli"

Kinds: ``error``, ``log``, ``help``, ``echo`` (printed by a command), and ``text`` (any other sentence).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("osrerank", "index_loaders", "workers")
MIN_WORDS = 4
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
HELP = {"help", "short_help", "epilog", "description"}


def messages(file: Path) -> Iterator[tuple[int, str, str]]:
    """Return the line, the kind and the text of each message in a source file."""
    yield from _messages(ast.parse(file.read_text("utf-8")), "text")


def _messages(node: ast.AST, kind: str) -> Iterator[tuple[int, str, str]]:
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text = _text(node)
        if len(re.findall(r"\w+", text)) >= MIN_WORDS and " " in text:
            yield node.lineno, kind, text
        return
    if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(one) for one in node.decorator_list):
        yield node.lineno, "help", " ".join((ast.get_docstring(node) or "").partition("\f")[0].split())
    kind = _kind(node) or kind
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not is_docstring:
            yield from _messages(child, kind)


def _kind(node: ast.AST) -> str:
    """Return the kind of the messages in a node; "" for that of the node around it."""
    if isinstance(node, ast.Raise):
        return "error"
    if isinstance(node, ast.keyword) and node.arg in HELP:
        return "help"
    if not isinstance(node, ast.Call):
        return ""
    called = ast.unparse(node.func).rpartition(".")
    if called[2].endswith("Error"):
        return "error"
    return "echo" if called[2] in {"echo", "secho", "print"} else "log" if called[2] in LEVELS else ""


def _text(node: ast.expr) -> str:
    """Return a string's text, with ``{}`` and the expression in place of each value; "" for what is no string."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else ast.unparse(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    """Print the messages of all packages."""
    for file in sorted(path for package in PACKAGES for path in Path(package).rglob("*.py")):
        for line, kind, text in messages(file):
            print(f"{file}:{line}\t{kind}\t{' '.join(text.split())}")


if __name__ == "__main__":
    main()
