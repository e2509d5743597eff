"""The repository's order: small packages, files that can be read at a sitting, unit tests where the code is."""

import ast
from collections import Counter
from importlib.metadata import distribution
from pathlib import Path

import pytest

from tests.servers import ROOT

PACKAGES = {
    "osrerank": ROOT / "osrerank",
    "osrerank_loaders": ROOT / "index_loaders" / "osrerank_loaders",
    "osrerank_workers": ROOT / "workers" / "osrerank_workers",
}
SOURCES = sorted(path for folder in (*PACKAGES.values(), ROOT / "tools") for path in folder.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MOST_FILES, MOST_LINES, MOST_TEST_LINES = 15, 400, 500
BY_COMMAND = {PACKAGES["osrerank"], PACKAGES["osrerank"] / "cli"}
"""The root, and the commands with a file each: these may have more files."""


def lines_of(path: Path) -> int:
    return len(path.read_text("utf-8").splitlines())


def test_no_package_has_more_files_than_can_be_taken_in() -> None:
    counts = Counter(path.parent for path in SOURCES)
    assert {folder: count for folder, count in counts.items() if count > MOST_FILES and folder not in BY_COMMAND} == {}


def test_no_file_is_too_long() -> None:
    long = {path: lines_of(path) for path in SOURCES if lines_of(path) > MOST_LINES}
    long |= {path: lines_of(path) for path in TESTS if lines_of(path) > MOST_TEST_LINES}
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    assert [path for path in SOURCES if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None] == []


def test_no_two_classes_share_a_name() -> None:
    nodes = (node for path in SOURCES for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    del names["OsrerankRerank"]  # of LangChain and of LlamaIndex
    assert [name for name, count in names.items() if count > 1] == []


def test_what_is_installed_is_called_osrerank() -> None:
    entries = [entry.value for entry in distribution("osrerank").entry_points]
    assert {entry.partition(".")[0] for entry in entries} == set(PACKAGES)
    for name, folder in PACKAGES.items():
        assert (folder / "py.typed").exists(), name


@pytest.mark.parametrize("name", PACKAGES)
def test_unit_tests_stand_where_the_code_does(name: str) -> None:
    """Every folder of unit tests is a package's, by the same name."""
    unit = ROOT / "tests" / "unit" / ("" if name == "osrerank" else name)
    elsewhere = {unit / other for other in (*PACKAGES, "docker")} if name == "osrerank" else set()
    folders = {path.parent for path in unit.rglob("test_*.py")}
    mirrored = {folder for folder in folders if not elsewhere & {folder, *folder.parents}}
    assert mirrored
    assert [folder for folder in mirrored if not (PACKAGES[name] / folder.relative_to(unit)).is_dir()] == []
