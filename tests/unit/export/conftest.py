"""One thread, as for the tests of training: sums are made in one order."""

import pytest

from tests.unit.training.conftest import one_thread  # noqa: F401 - a fixture

pytest.importorskip("onnx")
