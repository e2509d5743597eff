"""Read the JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError


def read_json(file: Path, *, kind: type = dict) -> Any:
    """Read a JSON file, and return its object, or its value of another kind.

    Raises:
        ModelLoadError: the file is missing, or is not JSON of that kind.
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
