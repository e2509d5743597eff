"""tests/README.md names tests that are there, and that `make test` runs."""

import ast
import re

import pytest

from tests.servers import ROOT

LEFT_OUT = re.compile(r"pytest\.mark\.(slow|bench|gpu)\b")
FOLDER = ROOT / "tests"
PROMISES = re.findall(
    r"`([\w/]+\.py)(?:::(test_\w+))?`", (FOLDER / "README.md").read_text("utf-8").partition("## What we")[2]
)


@pytest.mark.parametrize(("file", "name"), PROMISES)
def test_each_promise_names_a_test_that_exists_and_runs_in_make_test(file: str, name: str) -> None:
    body = ast.parse((FOLDER / file).read_text("utf-8")).body
    tests = [node for node in body if isinstance(node, ast.FunctionDef)]
    matching_tests = [test for test in tests if test.name == name or (not name and test.name.startswith("test_"))]
    assert matching_tests
    for one in matching_tests:
        assert not any(LEFT_OUT.match(ast.unparse(mark)) for mark in one.decorator_list)
    assignments = [ast.unparse(node) for node in body if isinstance(node, ast.Assign)]
    assert not any(assignment.startswith("pytestmark") and LEFT_OUT.search(assignment) for assignment in assignments)
