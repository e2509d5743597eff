"""Calibrations of indices, stored in a file. Each is a function from a stage's score to the probability of relevance.

Digests of the model, the options and the mapping show whether a stored calibration still applies.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

import numpy as np

from osrerank._bad_value import describe_bad_value
from osrerank.errors import ConfigError
from osrerank.formats.files import write_atomically
from osrerank.options.rerank import Rerank
from osrerank.settings import SETTINGS_FILE, Settings
from osrerank.thresholds.maps import ProbabilityMap, map_as_json, map_from_json
from osrerank.types import Candidate

VERSION = 1
"""The version of the file format."""
SUFFIX = ".calibration.json"


@dataclass(frozen=True, slots=True)
class IndexCalibration:
    """A function from a stage's score to the probability of relevance, fitted to the judgments of an index.

    Attributes:
        stage: the name of the stage whose score is converted, such as ``mono``.
        map: the function from scores to probabilities.
        model: the digest of the models and options that determine the score (`model_digest`).
        mapping: the digest of the mappings of the fields that are searched or used as model input (`mapping_digest`).
        precisions: pairs of a probability and the precision of the hits at or above it, such as
            ``((0.3, 0.5), (0.7, 0.8))``, by rising probability. Each precision is the lower bound of a 95% confidence
            interval, estimated from judgments that the function was not fitted to.
        evidence: the numbers of queries, hits and relevant hits to which the function was fitted, and the expected
            calibration errors of the model's own probabilities and of the function's.
    """

    stage: str
    map: ProbabilityMap
    model: str
    mapping: str
    precisions: tuple[tuple[float, float], ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def probability(self, candidate: Candidate) -> float | None:
        """Return a candidate's probability of relevance, or None if the stage did not score it."""
        scores = [entry.score for entry in candidate.trace if entry.stage == self.stage]
        if not scores:
            return None
        (probability,) = self.map.apply(np.array([scores[-1]]))
        return float(probability)

    def threshold_for(self, precision: float) -> float | None:
        """Return the lowest probability at or above which hits have at least this precision, or None."""
        return next((threshold for threshold, reached in self.precisions if reached >= precision), None)

    @property
    def highest_precision(self) -> float:
        """The highest of ``precisions``, or 0 if there are none."""
        return max((precision for _, precision in self.precisions), default=0.0)

    def as_json(self) -> dict[str, Any]:
        """Return the calibration as JSON values, which are the index's entry in the calibration file."""
        fields = {name: value for name, value in asdict(self).items() if name != "map"}
        return {**fields, "map": map_as_json(self.map)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the calibration from the JSON values of `as_json`.

        Raises:
            KeyError, TypeError, ValueError: the values are not those of a calibration.
        """
        precisions = tuple((float(threshold), float(precision)) for threshold, precision in content["precisions"])
        if not all(math.isfinite(value) for pair in precisions for value in pair):
            raise ValueError("a number in precisions is infinite or NaN")
        return cls(**{**content, "map": map_from_json(content["map"]), "precisions": precisions})


def calibration_file(settings: Settings) -> Path:
    """Return the path of the calibration file: ``osrerank.calibration.json`` beside ``osrerank.toml``.

    If there is no settings file, the path is beside the one that `osrerank init` would write.
    """
    return (settings.find_settings_file() or SETTINGS_FILE).with_suffix(SUFFIX)


def read_calibrations(file: Path) -> dict[str, IndexCalibration]:
    """Return the calibration of each index, or an empty dict if the file does not exist.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
        if content["version"] != VERSION:
            raise ValueError(f"its version is {content['version']}, not {VERSION}")  # noqa: TRY301 - converted below
        return {index: IndexCalibration.from_json(entry) for index, entry in content["indexes"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"the calibration file {file} is damaged or unreadable: {describe_bad_value(error)}"
        fix = "delete the file and run osrerank calibrate again"
        raise ConfigError(f"{reason}; {fix}", setting="calibration", source=str(file)) from None


def write_calibration(file: Path, index: str, calibration: IndexCalibration) -> None:
    """Write an index's calibration to the file, and keep the other indices' calibrations.

    Raises:
        ConfigError: the file exists and is invalid.
    """
    calibrations = {**read_calibrations(file), index: calibration}
    content = {"version": VERSION, "indexes": {name: calibrations[name].as_json() for name in sorted(calibrations)}}
    write_atomically(file, [json.dumps(content, indent=1), "\n"])


def model_digest(identity: Mapping[str, object], options: Rerank) -> str:
    """Return a digest of the models and options that the calibrated score depends on.

    ``identity`` comes from `RerankService.identity`. The options must name the fields that the search uses.
    """
    option_names = ("fields", "query_fields", "separator", "passages", "sentences", "rm3")
    option_values = {name: repr(getattr(options, name)) for name in option_names}
    models = {name: identity[name] for name in ("scorer", "blend", "mono", "vectors_weight") if name in identity}
    return _digest({**option_values, **models})


def mapping_digest(mappings: Mapping[str, Any], options: Rerank) -> str:
    """Return a digest of the mappings of the fields that a search queries or uses as model input.

    ``mappings`` is the engine's response to ``_mapping``. Index names are ignored, so that an alias can be moved to
    another index. The options must name the fields that the search uses.
    """
    names_with_boosts = (*(options.fields or ()), *(options.query_fields or ()))  # such as "title^2"
    patterns = {name.partition("^")[0] for name in names_with_boosts}
    used_fields = []
    for mapping in mappings.values():
        definitions = _flatten(mapping["mappings"].get("properties", {}))
        used = {
            path: definition
            for path, definition in definitions.items()
            if any(fnmatchcase(path, pattern) for pattern in patterns)
        }
        used_fields.append(json.dumps(used, sort_keys=True))
    return _digest(sorted(used_fields))


def _flatten(properties: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the definitions of all fields and subfields by path, such as ``{"title.raw": {"type": "keyword"}}``."""
    definitions: dict[str, Any] = {}
    for name, definition in properties.items():
        path = f"{prefix}{name}"
        definitions[path] = {key: value for key, value in definition.items() if key not in ("properties", "fields")}
        for key in ("properties", "fields"):
            definitions |= _flatten(definition.get(key, {}), f"{path}.")
    return definitions


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
