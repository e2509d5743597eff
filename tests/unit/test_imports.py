"""Imports point one way, and importing is free."""

import ast
import subprocess
import sys

import pytest

import osrerank
from tests.servers import ROOT

HEAVY = ("torch", "transformers", "celery", "onnxruntime", "tantivy", "ir_measures", "matplotlib", "fastapi")
# room -> rooms of ours that it may import; a room is a module or package of osrerank, or a package beside it
BASE = {"types", "errors", "_optional"}
LIBRARY = BASE | {"pipeline", "response", "stages", "retrieval", "scoring", "settings", "metrics", "testing"}
CLIENT = LIBRARY | {"client", "aio", "search", "msearch", "defaults", "reranker", "embedded", "training", "evaluation"}
MAY_IMPORT = {
    "types": set(),
    "errors": set(),
    "_optional": {"errors"},
    "settings": BASE,
    "metrics": BASE,
    "testing": BASE,
    "embedded": BASE | {"embedded"},
    **dict.fromkeys(("pipeline", "response", "stages", "retrieval", "scoring"), LIBRARY),
    **dict.fromkeys(("client", "aio", "search", "msearch", "defaults", "reranker", "training", "evaluation"), CLIENT),
    "__init__": CLIENT,
    "bench": CLIENT | {"bench", "__init__"},
    "doctor": CLIENT | {"bench"},
    "cli": CLIENT | {"bench", "cli", "doctor", "server", "__init__"},
    "server": CLIENT | {"server"},
    "adapters": CLIENT | {"adapters"},
    "__main__": {"cli"},
    "index_loaders": CLIENT | {"index_loaders", "cli", "__init__"},
    "workers": CLIENT | {"workers", "cli", "__init__"},
}


def room_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return parts[1] if parts[0] == "osrerank" else parts[0]


def rooms_imported(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "osrerank":
                room = parts[1] if len(parts) > 1 else "__init__"
                is_room = (ROOT / "osrerank" / f"{room}.py").exists() or (ROOT / "osrerank" / room).is_dir()
                yield room if is_room else "__init__"
            elif parts[0] in ("index_loaders", "workers"):
                yield parts[0]


@pytest.mark.parametrize("package", ["osrerank", "index_loaders", "workers"])
def test_imports_point_one_way(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        room = room_of(path)
        wrong = set(rooms_imported(path)) - MAY_IMPORT[room]
        assert not wrong, f"{path.relative_to(ROOT)} imports {', '.join(sorted(wrong))}"


def loaded_after(code):
    probe = f"import sys\n{code}\nprint(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.splitlines()[-1].split()


def test_import_is_free():
    assert loaded_after("import osrerank, osrerank.scoring, osrerank.evaluation") == []


def test_help_is_free():
    code = "from osrerank.cli import cli\ncli.main(['--help'], standalone_mode=False)"
    assert loaded_after(code) == []


def test_public_names_are_sorted_and_there():
    assert list(osrerank.__all__) == sorted(osrerank.__all__)
    assert all(hasattr(osrerank, name) for name in osrerank.__all__)
