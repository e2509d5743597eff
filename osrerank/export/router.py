"""Split sentence-transformers' Router, which encodes queries and documents with different lists of modules.

Each list is exported as a bi-encoder.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from osrerank.scoring.json_file import read_json
from osrerank.scoring.modular.description import LIBRARY, MODEL_FILE, MODULES_FILE, file_error, refuse_unknown_fields

ROUTER_FILES = ("router_config.json", "config.json")
"""The name of the Router's config file, and its name in older versions."""
ROUTES = ("query", "document")
IGNORED_PARAMETERS = ("default_route", "allow_empty_key")
"""Parameters for texts that are neither queries nor documents."""


def is_router(directory: Path) -> bool:
    """Return whether the first module of a directory is a Router."""
    if not (directory / MODULES_FILE).exists():
        return False
    modules = read_json(directory / MODULES_FILE, kind=list)
    module_type = str(modules[0].get("type")) if modules and isinstance(modules[0], dict) else ""
    return module_type.startswith(LIBRARY) and module_type.endswith(".Router")


def split_router(directory: Path, folder: Path) -> Mapping[str, Path]:
    """Write each route's model into the folder, as sentence-transformers saves a bi-encoder.

    Returns:
        The models' directories, by "query" and "document".

    Raises:
        ModelLoadError: a route is missing, or the Router's file sets an unknown parameter.
    """
    router, *shared_modules = read_json(directory / MODULES_FILE, kind=list)
    source = directory / str(router["path"])
    file = next((source / name for name in ROUTER_FILES if (source / name).exists()), source / ROUTER_FILES[0])
    content = read_json(file)
    refuse_unknown_fields(file, content.get("parameters") or {}, IGNORED_PARAMETERS, "Router")
    common_modules = [_Module(directory, str(module["path"]), str(module["type"])) for module in shared_modules]
    models = {}
    for route in ROUTES:
        try:
            types = {str(name): str(content["types"][name]) for name in content["structure"][route]}
        except (KeyError, TypeError) as error:
            raise file_error(file, f"it has no route {route!r}, or a module without a type: {error!r}") from None
        modules = [_Module(source, name, module_type) for name, module_type in types.items()]
        models[route] = _write_model(directory, file, [*modules, *common_modules], folder / route)
    return models


class _Module(NamedTuple):
    """A module of a route, in the folder ``name`` of ``parent``."""

    parent: Path
    name: str
    module_type: str


def _write_model(directory: Path, file: Path, modules: Sequence[_Module], target: Path) -> Path:
    target.mkdir()
    for parent, name, _type in modules:
        if Path(name).name != name:
            raise file_error(file, f"a module's folder is {name!r}; it must be a folder next to this file")
        if (parent / name).is_dir():
            shutil.copytree(parent / name, target / name)
    entries = [{"path": module.name, "type": module.module_type} for module in modules]
    (target / MODULES_FILE).write_text(json.dumps(entries), encoding="utf-8")
    if (directory / MODEL_FILE).exists():
        shutil.copyfile(directory / MODEL_FILE, target / MODEL_FILE)
    return target
