"""Split sentence-transformers' Router, which encodes queries with one list of modules and documents with another."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import LIBRARY, MODEL_FILE, MODULES_FILE, file_error, refuse_unknown

ROUTER_FILES = ("router_config.json", "config.json")
"""The names of the Router's file; older versions wrote the second one."""
ROUTES = ("query", "document")
PARAMETERS = ("default_route", "allow_empty_key")
"""Parameters for texts without a route; queries and documents have a route, so these parameters have no effect."""


def is_router(directory: Path) -> bool:
    """Return whether the first module of a directory is a Router."""
    if not (directory / MODULES_FILE).exists():
        return False
    modules = read_json(directory / MODULES_FILE, kind=list)
    module_type = str(modules[0].get("type")) if modules and isinstance(modules[0], dict) else ""
    return module_type.startswith(LIBRARY) and module_type.endswith(".Router")


def split(directory: Path, folder: Path) -> Mapping[str, Path]:
    """Write the model of each route, by ``query`` and ``document``, as sentence-transformers saves a bi-encoder.

    Raises:
        ModelLoadError: a route is missing, or the Router's file sets an unknown parameter.
    """
    router, *later_modules = read_json(directory / MODULES_FILE, kind=list)
    source = directory / str(router["path"])
    file = next((source / name for name in ROUTER_FILES if (source / name).exists()), source / ROUTER_FILES[0])
    content = read_json(file)
    refuse_unknown(file, content.get("parameters") or {}, PARAMETERS, "Router")
    return {side: _route(directory, source, file, content, side, later_modules, folder / side) for side in ROUTES}


def _route(
    directory: Path,
    source: Path,
    file: Path,
    content: Mapping[str, Any],
    side: str,
    later_modules: list[dict[str, Any]],
    target: Path,
) -> Path:
    try:
        types = {str(name): str(content["types"][name]) for name in content["structure"][side]}
    except (KeyError, TypeError) as error:
        raise file_error(file, f"it has no route {side!r}, or a module without a type: {error!r}") from None
    target.mkdir()
    modules = []
    for parent, name, kind in [
        *((source, name, kind) for name, kind in types.items()),
        *((directory, str(module["path"]), str(module["type"])) for module in later_modules),
    ]:
        if Path(name).name != name:
            raise file_error(file, f"a module's folder is {name!r}; it must be a folder next to this file")
        if (parent / name).is_dir():
            shutil.copytree(parent / name, target / name)
        modules.append({"path": name, "type": kind})
    (target / MODULES_FILE).write_text(json.dumps(modules), encoding="utf-8")
    if (directory / MODEL_FILE).exists():
        shutil.copyfile(directory / MODEL_FILE, target / MODEL_FILE)
    return target
