"""Download the official files: resume interrupted ones, check size and MD5."""

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from osrerank.errors import ChecksumError, LoaderError
from osrerank_loaders.load.retry import Patience

_CHUNK_BYTES = 1 << 20
_PERMANENT = frozenset({400, 401, 403, 404, 410})


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A published file, as its publisher describes it."""

    name: str
    url: str
    bytes: int
    md5: str


@dataclass(frozen=True, slots=True)
class Download:
    """The files of a collection."""

    about: str
    files: tuple[RemoteFile, ...]


def published() -> dict[str, Download]:
    """Return what can be downloaded, by name."""
    table = json.loads(resources.files("osrerank_loaders").joinpath("downloads.json").read_text())
    return {
        name: Download(entry["about"], tuple(RemoteFile(**file) for file in entry["files"]))
        for name, entry in table.items()
    }


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    patience: Patience | None = None,
    report: Callable[[int], None] = lambda _bytes: None,
) -> Path:
    """Download a file, or the missing rest; return its path once size and MD5 are right.

    Args:
        remote: the file.
        folder: for the file; while incomplete it has the suffix ``.part``.
        patience: how long to retry a server that drops the connection without progress.
        report: called with the number of bytes so far.

    Raises:
        ChecksumError: the bytes are not the published ones; the file is deleted.
        LoaderError: the server does not have the file, or did not answer.
    """
    target = folder / remote.name
    if target.exists():
        _check(target, remote)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    patience = patience or Patience()
    wait, before = patience.waits(remote.url), -1
    while (there := part.stat().st_size if part.exists() else 0) < remote.bytes:
        if there > before >= 0:
            wait = patience.waits(remote.url)
        before = there
        if (problem := _append(remote, part, there, patience.timeout_s, report)) is not None:
            wait(problem)
    _check(part, remote)
    part.rename(target)
    return target


def _append(remote: RemoteFile, part: Path, there: int, timeout_s: float, report: Callable[[int], None]) -> str | None:
    """Request the bytes from ``there`` on and append them; return why the connection ended early, or None."""
    if not remote.url.startswith(("http://", "https://")):
        raise LoaderError(f"{remote.url}: only http and https addresses are fetched")
    headers = {"Range": f"bytes={there}-", "X-Ms-Version": "2019-12-12"}  # Azure's default version reports no ranges
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310 - the scheme is checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - the scheme is checked above
            _copy(answer, part, there if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0, remote.bytes, report)
    except urllib.error.HTTPError as error:
        if error.code in _PERMANENT:
            raise LoaderError(f"{remote.url}: the server answers {error.code} {error.reason}") from error
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None if part.stat().st_size >= remote.bytes else "the connection ended early"


def _copy(answer: http.client.HTTPResponse, part: Path, begin: int, limit: int, report: Callable[[int], None]) -> None:
    """Write the bytes after the first ``begin``; one byte too many shows that it is another file."""
    with part.open("r+b" if begin else "wb") as file:
        file.seek(begin)
        there = begin
        while there <= limit and (chunk := answer.read1(_CHUNK_BYTES)):
            file.write(chunk)
            there += len(chunk)
            report(there)


def _check(path: Path, remote: RemoteFile) -> None:
    size = path.stat().st_size
    if size == remote.bytes:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found == remote.md5:
            return
        difference = f"its MD5 is {found}, published is {remote.md5}"
    else:
        difference = f"it has {size:,} bytes, published are {remote.bytes:,}"
    if path.suffix == ".part":
        path.unlink()
        raise ChecksumError(f"{remote.url}: {difference}; it is deleted: fetch it again", file=str(path))
    raise ChecksumError(f"{path}: {difference}; move it away and fetch it again", file=str(path))
