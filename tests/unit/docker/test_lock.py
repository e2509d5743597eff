"""constraints.txt and the requirements of the images: one version and a hash for each package."""

import re
import sysconfig
from importlib.metadata import distributions

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.servers import ROOT
from tools.deploy.lock import EXTRAS, FOLDER, MACHINES, requirements

LINE = re.compile(r"([a-z0-9-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)")
CUDA = re.compile(r"nvidia-.*|cuda-.*|triton")
"""Packages of torch on a GPU, which the tests' machine does not have."""


def pinned(name):
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    matches = [LINE.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(matches)
    return {match[1]: match[2] for match in matches}


def constraints():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("name", MACHINES)
def test_each_package_has_one_version_and_a_hash(name):
    lines = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    assert len(pinned(name)) == len(lines) - 1


def test_the_installed_packages_have_the_locked_versions():
    packages = distributions(path=[sysconfig.get_path("purelib")])  # sys.path may hold setuptools' own copies as well
    installed = {canonicalize_name(package.metadata["Name"]): Version(package.version).public for package in packages}
    pinned_here = {name: version for name, version in constraints().items() if name in installed}
    assert pinned_here
    assert pinned_here == {name: installed[name] for name in pinned_here}


@pytest.mark.parametrize("name", ["build", "cpu", "gpu"])
def test_image_requirements_have_the_versions_of_the_constraints(name):
    tested = constraints()
    different = {package for package, version in pinned(name).items() if tested.get(package) != version}
    assert [package for package in different if not (name == "gpu" and CUDA.fullmatch(package))] == []


def test_the_bill_of_materials_agrees_and_the_cpu_image_has_no_torch():
    tested = constraints()
    assert {name: tested[name] for name in pinned("sbom") if name in tested}.items() <= pinned("sbom").items()
    assert not {package for package in pinned("cpu") if package == "torch" or CUDA.fullmatch(package)}
    assert "torch" in pinned("gpu")


@pytest.mark.parametrize("name", ["build", *EXTRAS])
def test_the_lock_has_every_requirement_of_the_extras(name):
    """`make lock` writes them anew after a change of pyproject.toml or constraints.txt."""
    pins = pinned(name)
    for requirement in map(Requirement, requirements(name)):
        version = pins.get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version), requirement
