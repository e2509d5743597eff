"""Importing is free. That imports point one way is import-linter's to say (`make lint`)."""

import importlib
import subprocess
import sys

import pytest

import osrerank
from osrerank.cli import cli
from osrerank.errors import MissingDependencyError
from osrerank.evaluation.measures import parse_measures
from osrerank.formats.topics import read_queries
from osrerank.options.sentences import Sentences
from osrerank.scoring import names
from osrerank.scoring.registry import BACKENDS
from osrerank.scoring.remote.broker import celery_app
from osrerank.stages import sentence_splitting
from tests.servers import ROOT

SERVICES = ("celery", "redis", "fastapi")
HEAVY = (*SERVICES, "torch", "transformers", "onnxruntime", "tokenizers", "tantivy", "ir_measures", "matplotlib")
OF_COMMANDS = ("onnx", "cbor2", "zstandard")


def loaded_after(code):
    probe = f"import sys\n{code}\nprint(' '.join(name for name in {(*HEAVY, *OF_COMMANDS)!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()[-1].split()


@pytest.mark.long
def test_importing_osrerank_loads_no_heavy_library():
    names = ("scoring.registry", "evaluation", "formats", "options")
    assert loaded_after("\n".join(["import osrerank", *(f"import osrerank.{name}" for name in names)])) == []


@pytest.mark.long
def test_the_help_of_commands_loads_no_heavy_library():
    commands = ([], ["export"], ["index"])
    code = f"for one in {commands}: cli.main([*one, '--help'], standalone_mode=False)"
    assert loaded_after(f"from osrerank.cli import cli\n{code}") == []


@pytest.mark.long
def test_the_command_line_starts_with_click_alone():
    """So that a signal finds a handler, and a health check costs little."""
    heavy = ("numpy", "pydantic", "opensearchpy")
    code = f"import sys, osrerank.cli\nprint([one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_the_names_of_backends_are_those_of_their_entries():
    assert {*names.BACKEND_NAMES} == {names.AUTO, *BACKENDS}


def test_public_names_are_sorted_and_can_be_imported():
    assert list(osrerank.__all__) == sorted(osrerank.__all__)
    assert all(hasattr(osrerank, name) for name in osrerank.__all__)


def split(splitter):
    sentence_splitting._load_punkt.cache_clear()
    list(sentence_splitting.split_into_sentences("One. Two.", Sentences(splitter=splitter)))


OPTIONAL = {
    "async": ("aiohttp", lambda: importlib.import_module("osrerank.aio")),
    "langchain": ("langchain_core", lambda: importlib.import_module("osrerank.adapters.langchain")),
    "llama-index": ("llama_index.core", lambda: importlib.import_module("osrerank.adapters.llama_index")),
    "haystack": ("haystack", lambda: importlib.import_module("osrerank.adapters.haystack")),
    "pyterrier": ("pyterrier", lambda: importlib.import_module("osrerank.adapters.pyterrier")),
    "ir-datasets": ("ir_datasets", lambda: read_queries("ir_datasets:vaswani")),
    "workers": ("celery", lambda: celery_app("redis://localhost:9")),
    "server": ("fastapi", lambda: cli.main(["serve"], standalone_mode=False)),
    "eval": ("ir_measures", lambda: parse_measures(["RR"])),
    "sentences": ("sentencex", lambda: split("sentencex")),
    "punkt": ("punkt", lambda: split("punkt")),
}


@pytest.mark.parametrize("extra", OPTIONAL)
def test_a_missing_package_names_its_extra(extra, monkeypatch):
    module, use = OPTIONAL[extra]
    monkeypatch.setitem(sys.modules, module, None)
    for name in [module for module in sys.modules if module.startswith(("osrerank.aio", "osrerank.adapters."))]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=rf"'osrerank\[{extra}\]'"):
        use()
