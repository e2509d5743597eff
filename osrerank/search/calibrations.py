"""Look up the calibration of an index: the function from score to probability that ``osrerank calibrate`` fitted.

A calibration is rejected if it was fitted with another model, other options or another mapping of the index.
"""

import logging
from collections.abc import Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from osrerank._platform import fork_safe_lock
from osrerank.errors import ConfigError, MissingDependencyError, ModelLoadError, WorkerError
from osrerank.options.rerank import Rerank
from osrerank.retrieval.expiring import ExpiringCache
from osrerank.retrieval.requests import SideRequest, build_path
from osrerank.search.step import Computation
from osrerank.service import RerankService
from osrerank.settings import Settings
from osrerank.thresholds.calibration import (
    IndexCalibration,
    calibration_file,
    mapping_digest,
    model_digest,
    read_calibrations,
)
from osrerank.thresholds.cut import Thresholds
from osrerank.types.engine_errors import EngineError

RECALIBRATE = "run osrerank calibrate --index {index} again"

logger = logging.getLogger(__name__)

CalibrationSteps = Generator[SideRequest | Computation, Any, Thresholds]
"""A generator that yields the requests and computations for its caller to perform, and returns the thresholds."""


class Calibrations:
    """Reads the calibrations from their file, and reads them again when the file changes.

    Safe to use from many threads.

    Args:
        settings: the settings, which name the file.
    """

    def __init__(self, settings: Settings) -> None:
        self.file = calibration_file(settings)
        self._lock = fork_safe_lock()
        # the file's time and size when it was last read (0 before), and its calibrations by index
        self._content: tuple[tuple[int, int], dict[str, IndexCalibration]] = ((0, 0), {})
        self._mappings: ExpiringCache[str, Mapping[str, Any]] = ExpiringCache()

    def find_thresholds(self, options: Rerank, index: Any, service: RerankService) -> CalibrationSteps:
        """Return the thresholds below which a search's hits are removed.

        If no calibration is valid, no hits are removed, and the thresholds and the log say why.

        Args:
            options: the search's options, with its fields and ``min_probability`` or ``cutoff``.
            index: the caller's index or indices.
            service: the service that holds the models.

        Raises:
            ConfigError: there is no valid calibration, and ``on_failure`` is ``"raise"``.
        """
        calibration: IndexCalibration | None = None
        reason = ""
        try:
            calibration = yield from self._find_calibration(options, index, service)
        except (ConfigError, ModelLoadError, MissingDependencyError, WorkerError, EngineError) as error:
            reason = str(error)
            if options.on_failure == "raise":
                raise _calibration_error(reason, self.file) from None
            logger.warning("[cut-unapplied] no hits were removed by probability: %s", reason)
        return Thresholds(options.min_probability, options.cutoff, calibration, reason)

    def _find_calibration(
        self, options: Rerank, index: Any, service: RerankService
    ) -> Generator[SideRequest | Computation, Any, IndexCalibration]:
        """Return an index's calibration, after a check that it was made with the same model, options and mapping.

        Raises:
            ConfigError: the index has no calibration, or it was made with another model, other options or another
                mapping.
        """
        name = index if isinstance(index, str) else ",".join(index or [])
        calibration = self._read_file().get(name)
        if calibration is None:
            reason = f"{self.file} has no calibration of {name or 'all indices'}: run osrerank calibrate --index NAME"
            raise _calibration_error(reason, self.file)
        identity: Mapping[str, object] = yield Computation(partial(service.identity, options))
        # a pipeline of the caller's own has no "scorer", because its models are unknown
        if "scorer" not in identity or model_digest(identity, options) != calibration.model:
            reason = f"the calibration of {name} was made for another model or other options"
            raise _calibration_error(f"{reason}: {RECALIBRATE.format(index=name)}", self.file)
        mappings = yield from self._read_mappings(name)
        if mapping_digest(mappings, options) != calibration.mapping:
            reason = f"the calibration of {name} was made with another mapping of its fields"
            raise _calibration_error(f"{reason}: {RECALIBRATE.format(index=name)}", self.file)
        return calibration

    def _read_mappings(self, name: str) -> Generator[SideRequest, Any, Mapping[str, Any]]:
        cached = self._mappings.get(name)
        if cached is not None:
            return cached
        mappings: Mapping[str, Any] = yield SideRequest("GET", build_path(name, "_mapping"))
        self._mappings.put(name, mappings)
        return mappings

    def _read_file(self) -> dict[str, IndexCalibration]:
        """Return the file's calibrations by index name. The file is read only if it has changed."""
        try:
            status = self.file.stat()
        except OSError:
            return {}
        time_and_size = (status.st_mtime_ns, status.st_size)
        with self._lock:
            last_time_and_size, calibrations = self._content
        if time_and_size != last_time_and_size:
            calibrations = read_calibrations(self.file)
            with self._lock:
                self._content = time_and_size, calibrations
        return calibrations


def _calibration_error(reason: str, file: Path) -> ConfigError:
    return ConfigError(reason, setting="rerank.min_probability", source=str(file))
