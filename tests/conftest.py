"""Fixtures that every tier may use."""

import hashlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

from tests import servers
from tests.bi_encoders import plain

# Machines are noisy, and a fresh checkout first builds Hypothesis' tables of characters: time is no ground to fail on.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(scope="session", autouse=True)
def no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the settings file and the document vectors of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSRERANK_VECTORS_FOLDER", str(tmp_path_factory.mktemp("vectors")))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("configuration")))
        yield


class Mistakes(logging.Handler):
    """Collects what osrerank logs as a mistake of its own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("[internal]"):
            self.found.append(self.format(record))


@pytest.fixture(autouse=True)
def no_mistakes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a search had to be answered without reranking because of a mistake of osrerank's own."""
    mistakes, logger = Mistakes(), logging.getLogger("osrerank.search.run")
    logger.addHandler(mistakes)
    yield
    logger.removeHandler(mistakes)
    assert request.node.get_closest_marker("mistakes") or not mistakes.found, mistakes.found[0]


@pytest.fixture
def no_folder(tmp_path: Path) -> Path:
    """A folder of vectors that cannot be made, so that a client has its side indices alone."""
    (tmp_path / "file").touch()
    return tmp_path / "file" / "vectors"


@pytest.fixture(scope="session")
def opensearch_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real OpenSearch."""
    with servers.opensearch(tmp_path_factory.mktemp("opensearch")) as url:
        yield url


@pytest.fixture(scope="session")
def elasticsearch_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Elasticsearch."""
    with servers.elasticsearch(tmp_path_factory.mktemp("elasticsearch")) as url:
        yield url


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real Redis."""
    with servers.redis(tmp_path_factory.mktemp("redis")) as url:
        yield url


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real collections beside the checkout."""
    if not servers.SHARED.is_dir():
        pytest.skip("the real collections are not here: no folder ../shared")
    return servers.SHARED / "data"


@pytest.fixture(scope="session")
def bi_encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return a function that exports the tiny bi-encoder with some options, once a run for all of its processes."""
    pytest.importorskip("torch")
    pytest.importorskip("onnx")
    from osrerank.export.export_model import ExportOptions, export_model

    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "bi-encoders"
    folder.mkdir(exist_ok=True)

    def exported(**options: str) -> Path:
        name = hashlib.sha256(repr(sorted(options.items())).encode()).hexdigest()[:16]
        with FileLock(folder / f"{name}.lock"):
            if not (folder / name).exists():
                source = plain(folder / f"{name}-source")
                export_model(source, folder / f"{name}-unfinished", ExportOptions(**options))
                (folder / f"{name}-unfinished").rename(folder / name)
        return folder / name

    return exported


@pytest.fixture(scope="session")
def model(bi_encoder: Callable[..., Path]) -> Path:
    """A small bi-encoder."""
    return bi_encoder(pooling="cls", precision="fp32")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what a server is started for, wherever it stands."""
    for item in items:
        if {"opensearch_url", "elasticsearch_url", "redis_url"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


OF_LATER_TIERS = ("server", "integration", "long", "slow", "bench")
STANDARD = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - of Python itself
STARTS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.system"}
_may_start = [True]


def _refuse_processes(event: str, arguments: tuple[object, ...]) -> None:
    if event in STARTS and not _may_start[0] and _is_ours(sys._getframe(1)):
        pytest.fail(f"a unit test starts a process ({arguments[:1]}): mark it `long`, for `make test`")


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether the nearest caller outside of Python's own library is no library: those may look around once."""
    while frame is not None and frame.f_code.co_filename.startswith((STANDARD, "<")):
        frame = frame.f_back
    return frame is not None and "site-packages" not in frame.f_code.co_filename


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Let no test of `make check` start a process."""
    is_unit = servers.ROOT / "tests" / "unit" in item.path.parents
    _may_start[0] = not is_unit or any(item.get_closest_marker(name) for name in OF_LATER_TIERS)
    try:
        return (yield)
    finally:
        _may_start[0] = True
