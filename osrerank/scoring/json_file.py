"""Read the JSON files of a model directory."""

import json
from pathlib import Path
from typing import Any

from osrerank.errors import ModelLoadError


def read_optional_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or an empty one if the file does not exist. For the errors, see `read_json`."""
    content: dict[str, Any] = read_json(file) if file.exists() else {}
    return content


def read_json(file: Path, *, expected_type: type = dict) -> Any:
    """Return the content of a JSON file.

    Args:
        file: the file's path.
        expected_type: the type that the content must have.

    Raises:
        ModelLoadError: the file is missing, is not JSON, or has another type.
    """
    try:
        content = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise ModelLoadError(f"{file} is missing; copy the model's whole directory", path=str(file)) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(
            f"{file} cannot be read as JSON; save or download it again ({error})", path=str(file)
        ) from error
    if not isinstance(content, expected_type):
        type_name = "object" if expected_type is dict else expected_type.__name__
        raise ModelLoadError(f"{file} is not a JSON {type_name}", path=str(file))
    return content
