"""Split a Router of sentence-transformers, which has one list of modules for queries and one for documents.

Each list is then exported as a bi-encoder.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from osrerank._bad_value import describe_bad_value
from osrerank.scoring.json_file import read_json
from osrerank.scoring.model_files import copy_existing
from osrerank.scoring.modular.description import LIBRARY, MODEL_FILE, MODULES_FILE, file_error, refuse_unknown_fields

ROUTER_FILES = ("router_config.json", "config.json")
"""The names of the Router's config file in current and older versions of sentence-transformers."""
ROUTES = ("query", "document")
IGNORED_PARAMETERS = ("default_route", "allow_empty_key")
"""Parameters of a Router that osrerank ignores, because they do not affect queries and documents."""


def is_router(directory: Path) -> bool:
    """Return whether a directory contains a model whose first module is a Router."""
    if not (directory / MODULES_FILE).exists():
        return False
    modules = read_json(directory / MODULES_FILE, expected_type=list)
    module_type = str(modules[0].get("type")) if modules and isinstance(modules[0], dict) else ""
    return module_type.startswith(LIBRARY) and module_type.endswith(".Router")


def split_router(directory: Path, folder: Path) -> Mapping[str, Path]:
    """Write the models for queries and documents into the folder, as sentence-transformers saves bi-encoders.

    Returns:
        The model's directory for each route: "query" and "document".

    Raises:
        ModelLoadError: a route is missing, or the Router's file sets an unknown parameter.
    """
    router, *later_modules = read_json(directory / MODULES_FILE, expected_type=list)
    router_folder = directory / str(router["path"])
    possible_files = [router_folder / name for name in ROUTER_FILES]
    config_file = next((path for path in possible_files if path.exists()), possible_files[0])
    config = read_json(config_file)
    refuse_unknown_fields(config_file, config.get("parameters") or {}, IGNORED_PARAMETERS, "Router")
    # The modules after the Router belong to both models.
    common_modules = [_Module(directory, str(module["path"]), str(module["type"])) for module in later_modules]
    models = {}
    for route in ROUTES:
        try:
            types = {str(name): str(config["types"][name]) for name in config["structure"][route]}
        except (KeyError, TypeError) as error:
            reason = (
                f"the route {route!r} or the type of one of its modules cannot be read: {describe_bad_value(error)}"
            )
            raise file_error(config_file, reason) from None
        route_modules = [_Module(router_folder, name, module_type) for name, module_type in types.items()]
        models[route] = _write_model(directory, config_file, [*route_modules, *common_modules], folder / route)
    return models


class _Module(NamedTuple):
    """A module of a model. Its files are in the folder ``name`` of the directory ``parent``."""

    parent: Path
    name: str
    module_type: str


def _write_model(directory: Path, config_file: Path, modules: Sequence[_Module], target: Path) -> Path:
    """Write a bi-encoder of these modules to ``target``, and return ``target``. Errors are about ``config_file``."""
    target.mkdir()
    for parent, name, _type in modules:
        is_nested = Path(name).name != name
        if is_nested:
            raise file_error(config_file, f"a module's folder is {name!r}; it must be a folder next to this file")
        if (parent / name).is_dir():
            shutil.copytree(parent / name, target / name)
    entries = [{"path": module.name, "type": module.module_type} for module in modules]
    (target / MODULES_FILE).write_text(json.dumps(entries), encoding="utf-8")
    copy_existing(directory, target, [MODEL_FILE])
    return target
