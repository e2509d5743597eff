"""Find a search's calibration, and reject it if it was made for another model, mapping or set of options."""

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
    RECALIBRATE,
    IndexCalibration,
    calibration_file,
    mapping_digest,
    model_digest,
    read_calibrations,
)
from osrerank.thresholds.cut import Thresholds
from osrerank.types.engine_errors import EngineError

logger = logging.getLogger(__name__)

CalibrationSteps = Generator[SideRequest | Computation, Any, Thresholds]


class Calibrations:
    """The calibrations that `osrerank calibrate` wrote; the file is read again when it changes.

    Safe to use from many threads.

    Args:
        settings: the settings, which have the path of the file.
    """

    def __init__(self, settings: Settings) -> None:
        self.file = calibration_file(settings)
        self._lock = fork_safe_lock()
        self._read: tuple[tuple[int, int], dict[str, IndexCalibration]] = ((0, 0), {})
        self._mappings: ExpiringCache[str, Mapping[str, Any]] = ExpiringCache()

    def of(self, options: Rerank, index: Any, service: RerankService) -> CalibrationSteps:
        """Yield the steps that find an index's calibration, and return the thresholds that limit a search's hits.

        A calibration is not used if it was made for another model, mapping or set of options. The thresholds and the
        log then have the reason, and a metric counts the search.

        Args:
            options: the search's options, with its fields and ``min_probability`` or ``cutoff``.
            index: the caller's index or indices.
            service: the service that holds the models.

        Raises:
            ConfigError: there is no valid calibration, and the options say to raise.
        """
        calibration: IndexCalibration | None = None
        reason = ""
        try:
            calibration = yield from self._valid(options, index, service)
        except (ConfigError, ModelLoadError, MissingDependencyError, WorkerError, EngineError) as error:
            reason = str(error)
            if options.on_failure == "raise":
                raise ConfigError(reason, setting="rerank.min_probability", source=str(self.file)) from None
            logger.warning("[cut-unapplied] no hits were removed by probability: %s", reason)
        return Thresholds(options.min_probability, options.cutoff, calibration, reason)

    def _valid(
        self, options: Rerank, index: Any, service: RerankService
    ) -> Generator[SideRequest | Computation, Any, IndexCalibration]:
        """Yield the steps that check an index's calibration, and return it.

        Raises:
            ConfigError: no calibration of the index is valid for the options.
        """
        name = index if isinstance(index, str) else ",".join(index or [])
        calibration = self._of_file().get(name)
        if calibration is None:
            reason = f"{self.file} has no calibration of {name or 'all indices'}: run osrerank calibrate --index NAME"
            raise _unusable(reason, self.file)
        identity: Mapping[str, object] = yield Computation(partial(service.identity, options))
        if "scorer" not in identity or model_digest(identity, options) != calibration.model:
            reason = "was made for another model or other options"
            raise _unusable(f"the calibration of {name} {reason}: {RECALIBRATE.format(index=name)}", self.file)
        mappings = yield from self._mapping(name)
        if mapping_digest(mappings, options) != calibration.mapping:
            reason = "was made with another mapping of its fields"
            raise _unusable(f"the calibration of {name} {reason}: {RECALIBRATE.format(index=name)}", self.file)
        return calibration

    def _mapping(self, name: str) -> Generator[SideRequest, Any, Mapping[str, Any]]:
        cached = self._mappings.get(name)
        if cached is not None:
            return cached
        mappings: Mapping[str, Any] = yield SideRequest("GET", build_path(name, "_mapping"))
        self._mappings.put(name, mappings)
        return mappings

    def _of_file(self) -> dict[str, IndexCalibration]:
        """Return the file's calibrations by index name; the file is read only if it has changed."""
        try:
            state = self.file.stat()
        except OSError:
            return {}
        stamp = (state.st_mtime_ns, state.st_size)
        with self._lock:
            last_stamp, calibrations = self._read
        if stamp != last_stamp:
            calibrations = read_calibrations(self.file)
            with self._lock:
                self._read = stamp, calibrations
        return calibrations


def _unusable(reason: str, file: Path) -> ConfigError:
    return ConfigError(reason, setting="rerank.min_probability", source=str(file))
