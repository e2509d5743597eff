"""Archives are read as the loaders read them."""

from tests.unit.osrerank_loaders.conftest import read  # noqa: F401 - a fixture
