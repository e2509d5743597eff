"""The order of the repository: each module and each file of tests has a docstring; unit tests mirror packages."""

import ast
from importlib.metadata import distribution

import pytest

from tests.servers import ROOT

PACKAGES = {
    "osrerank": ROOT / "osrerank",
    "osrerank_loaders": ROOT / "index_loaders" / "osrerank_loaders",
    "osrerank_workers": ROOT / "workers" / "osrerank_workers",
}
SOURCES = sorted(path for folder in (*PACKAGES.values(), ROOT / "tools") for path in folder.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_every_module_has_a_docstring() -> None:
    assert [path for path in (*SOURCES, *TESTS) if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None] == []


def test_installed_packages_and_commands_are_called_osrerank() -> None:
    entries = [entry.value for entry in distribution("osrerank").entry_points]
    assert {entry.partition(".")[0] for entry in entries} == set(PACKAGES)
    for name, folder in PACKAGES.items():
        assert (folder / "py.typed").exists(), name


@pytest.mark.parametrize("name", PACKAGES)
def test_folders_of_unit_tests_mirror_packages(name: str) -> None:
    """Every folder of unit tests is a package's, by the same name."""
    unit = ROOT / "tests" / "unit" / ("" if name == "osrerank" else name)
    elsewhere = {unit / other for other in (*PACKAGES, "docker", "tools")} if name == "osrerank" else set()
    folders = {path.parent for path in unit.rglob("test_*.py")}
    mirrored = {folder for folder in folders if not elsewhere & {folder, *folder.parents}}
    assert mirrored
    assert [folder for folder in mirrored if not (PACKAGES[name] / folder.relative_to(unit)).is_dir()] == []
