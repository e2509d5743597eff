"""Import optional libraries. The error for a missing library says which extra to install."""

import importlib
from types import ModuleType

from osrerank.errors import MissingDependencyError


def require(module: str, *, extra: str) -> ModuleType:
    """Import a module of an optional extra.

    Raises:
        MissingDependencyError: the module is not installed. The message says which extra to install.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # the module is installed, but it imports another one that is missing
        raise MissingDependencyError(
            f"this needs the Python package {error.name}, which is not installed: pip install 'osrerank[{extra}]'",
            extra=extra,
            module=error.name,
        ) from error
