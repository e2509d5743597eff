"""Read the JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError


def read_json(file: Path, *, kind: type = dict) -> Any:
    """Return the content of a JSON file.

    Args:
        file: the file's path.
        kind: the type that the content must have.

    Raises:
        ModelLoadError: the file is missing, is not JSON, or has another type.
    """
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelLoadError(f"{file} is missing; a model directory needs it", path=str(file)) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{file} cannot be read as JSON: {error}", path=str(file)) from error
    if not isinstance(content, kind):
        raise ModelLoadError(f"{file} is not a JSON {'object' if kind is dict else kind.__name__}", path=str(file))
    return content
