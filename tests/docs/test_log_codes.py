"""Log lines that name a condition have a code, and docs/operations.md says what to do about each of them."""

import ast
import functools
import re
from pathlib import Path

from osrerank.types.reasons import WarningCode
from tests.servers import ROOT

FOLDERS = (ROOT / "osrerank", ROOT / "workers")
WITHOUT = ("training", "embedded", "cli", "formats")
"""Packages whose lines are read by whoever started them, or that have logs of their own."""
LEVELS = {"warning", "error", "critical", "exception"}
CODE = re.compile(r"\[([a-z-]+|%s)\] ")


@functools.cache
def lines() -> list[tuple[str, str]]:
    """Return where each line above INFO is logged, and its words."""
    codes = []
    for path in sorted(path for folder in FOLDERS for path in folder.rglob("*.py")):
        if path.is_relative_to(ROOT / "osrerank") and path.relative_to(ROOT / "osrerank").parts[0] in WITHOUT:
            continue
        codes += [(f"{path.name}:{node.lineno}", words(node)) for node in calls(path)]
    return codes


def calls(path: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS
        if isinstance(node.func.value, ast.Name) and node.func.value.id == "logger"
    ]


def words(call: ast.Call) -> str:
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def test_every_line_that_names_a_condition_begins_with_its_code() -> None:
    assert [location for location, text in lines() if CODE.match(text) is None] == []


def test_the_codes_in_the_documentation_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8").split("## Codes in the log")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([a-z-]+)` \| .+ \|$", page, re.MULTILINE)
    used = {code[1] for _, text in lines() if (code := CODE.match(text))} - {"%s"} | set(WarningCode)
    assert documented == sorted(used)
