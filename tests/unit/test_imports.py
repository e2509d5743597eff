"""Importing is free. That imports point one way is import-linter's to say (`make lint`)."""

import subprocess
import sys

import pytest

import osrerank
from tests.servers import ROOT

SERVICES = ("celery", "redis", "fastapi")
HEAVY = (*SERVICES, "torch", "transformers", "onnxruntime", "tokenizers", "tantivy", "ir_measures", "matplotlib")
OF_COMMANDS = ("onnx", "cbor2", "zstandard")


def loaded_after(code):
    probe = f"import sys\n{code}\nprint(' '.join(name for name in {(*HEAVY, *OF_COMMANDS)!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.long
def test_import_is_free():
    names = ("scoring.registry", "evaluation", "formats", "options")
    assert loaded_after("\n".join(["import osrerank", *(f"import osrerank.{name}" for name in names)])) == []


@pytest.mark.long
def test_help_is_free():
    commands = ([], ["export"], ["index"])
    code = f"for one in {commands}: cli.main([*one, '--help'], standalone_mode=False)"
    assert loaded_after(f"from osrerank.cli import cli\n{code}") == []


def test_public_names_are_sorted_and_there():
    assert list(osrerank.__all__) == sorted(osrerank.__all__)
    assert all(hasattr(osrerank, name) for name in osrerank.__all__)
