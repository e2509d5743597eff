"""The software bill of materials of the CPU image's packages: `make sbom`."""

import json
import subprocess
import sys

import pytest

from osrerank._version import __version__
from tests.servers import ROOT
from tools.deploy.lock import FOLDER

BUILD = ROOT / "build"
VALIDATE = """
import sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
version = SchemaVersion.from_version(sys.argv[2])
print(JsonStrictValidator(version).validate_str(open(sys.argv[1], encoding="utf-8").read()))
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_bill_of_materials_is_valid_and_complete():
    subprocess.run(["make", "sbom", f"PYTHON={sys.executable}"], cwd=ROOT, check=True, timeout=800)
    file = BUILD / "osrerank-cpu.cdx.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    python = str(BUILD / "sbom" / "tools" / "bin" / "python")
    command = [python, "-c", VALIDATE, str(file), content["specVersion"]]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "None"

    root = content["metadata"]["component"]
    assert root["name"] == "osrerank"
    lines = (FOLDER / "cpu.txt").read_text(encoding="utf-8").splitlines()
    wanted = {tuple(line.split(" ")[0].split("==")) for line in lines if not line.startswith("#")}
    found = {(one["name"].lower().replace("_", "-"), one["version"]) for one in content["components"]}
    assert (
        found - {("pip", v) for _, v in found} - {("setuptools", v) for _, v in found} - {("osrerank", __version__)}
        == wanted
    )
    assert all(one["purl"].startswith("pkg:pypi/") for one in content["components"])
    assert sum("licenses" in one for one in content["components"]) > len(wanted) * 0.9
