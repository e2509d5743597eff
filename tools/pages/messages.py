"""List all messages to users in the source code, one per line: file and line, kind, text.

python tools/pages/messages.py | grep "^osrerank/cli"

The kinds are ``error``, ``log``, ``help``, ``echo`` (printed by a command), and ``text`` (any other sentence).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("osrerank", "index_loaders", "workers")
MIN_WORDS = 4
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
HELP_ARGUMENTS = {"help", "short_help", "epilog", "description"}


def find_messages(node: ast.AST, kind: str = "text") -> Iterator[tuple[int, str, str]]:
    """Yield the line, kind and text of each message in a syntax tree; ``kind`` is that of the enclosing node."""
    if isinstance(node, ast.Constant | ast.JoinedStr):
        text = _text(node)
        if len(re.findall(r"\w+", text)) >= MIN_WORDS and " " in text:
            yield node.lineno, kind, text
        return
    if isinstance(node, ast.FunctionDef) and any("command" in ast.unparse(item) for item in node.decorator_list):
        yield node.lineno, "help", " ".join((ast.get_docstring(node) or "").partition("\f")[0].split())
    kind = _message_kind(node) or kind
    for child in ast.iter_child_nodes(node):
        is_docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not is_docstring:
            yield from find_messages(child, kind)


def _message_kind(node: ast.AST) -> str:
    """Return the kind of the messages in a node; "" if the node does not determine it."""
    if isinstance(node, ast.Raise):
        return "error"
    if isinstance(node, ast.keyword) and node.arg in HELP_ARGUMENTS:
        return "help"
    if not isinstance(node, ast.Call):
        return ""
    function = ast.unparse(node.func).rpartition(".")[2]
    if function.endswith("Error"):
        return "error"
    if function in {"echo", "secho", "print"}:
        return "echo"
    return "log" if function in LOG_METHODS else ""


def _text(node: ast.expr) -> str:
    """Return the text of a string or f-string, with its expressions in braces; "" for other constants."""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else ast.unparse(part) for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    """Print the messages of all packages."""
    for file in sorted(path for package in PACKAGES for path in Path(package).rglob("*.py")):
        for line, kind, text in find_messages(ast.parse(file.read_text("utf-8"))):
            print(f"{file}:{line}\t{kind}\t{' '.join(text.split())}")


if __name__ == "__main__":
    main()
