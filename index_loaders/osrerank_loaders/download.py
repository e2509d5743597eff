"""Download the official files of collections, resuming interrupted downloads and checking sizes and MD5s."""

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePath
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from osrerank.errors import ChecksumError, LoaderError
from osrerank_loaders.load.retry import RetryBudget

_CHUNK_BYTES = 1 << 20
_PAGES = frozenset({"text/html", "application/xhtml+xml"})
_PAGE_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})
_PAGE_BEGIN = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_PAGE_HEAD = 512
_PERMANENT = frozenset({400, 401, 403, 404, 405, 410, 501})


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A published file, as its publisher describes it.

    Attributes:
        name: the name under which the file is saved.
        url: the http or https address.
        bytes: the size in bytes; None if it is not published: the size that the server sends is then expected.
        md5: the MD5 in hexadecimal digits; None if it is not published: the file is then not verified.
    """

    name: Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
    url: Annotated[str, Field(pattern=r"^https?://[^/]")]
    bytes: Annotated[int, Field(gt=0)] | None = None
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A collection's description in one line, and its files."""

    about: str
    files: Annotated[tuple[RemoteFile, ...], Field(min_length=1)]


def published(catalogue: Path | None = None) -> dict[str, Download]:
    """Return the collections that can be downloaded, by name.

    Args:
        catalogue: a JSON file, ``{name: {"about": ..., "files": [{"name", "url", "bytes", "md5"}]}}``, to read instead
            of the package's.

    Raises:
        LoaderError: the catalogue cannot be read or is invalid; the message names the first invalid field.
    """
    source = catalogue or resources.files("osrerank_loaders").joinpath("downloads.json")
    form = TypeAdapter(dict[str, Download], config=ConfigDict(extra="forbid", strict=True))
    try:
        return form.validate_json(source.read_bytes())
    except OSError as error:
        raise LoaderError(f"{source}: {error.strerror or error}", file=str(source)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise LoaderError(f"{source}: {field}: {first['msg']}", file=str(source)) from None


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    retry_budget: RetryBudget | None = None,
    report: Callable[[int], None] = lambda _bytes: None,
) -> Path:
    """Download a file, or the part that is missing; check its size and MD5, if they are published, and return its path.

    Args:
        remote: the file to download.
        folder: the folder to save it in; an incomplete file has the suffix ``.part``.
        retry_budget: how long to retry while the server drops the connection without progress.
        report: a function that is called with the number of bytes on disk.

    Raises:
        ChecksumError: the size or the MD5 differs from the published one; a new download is then deleted.
        LoaderError: the server does not have the file, or did not respond.
    """
    target = folder / remote.name
    if target.exists():
        _check(target, remote)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    retry_budget = retry_budget or RetryBudget()
    version = ""
    if remote.bytes is None or remote.md5 is None:
        size, version = _describe(remote, retry_budget)
        remote = replace(remote, bytes=remote.bytes or size)
    label = part.with_name(f"{part.name}.version")
    if remote.md5 is None and not _has_version(
        label, version
    ):  # without an MD5, a mixture of two versions would go unnoticed
        part.unlink(missing_ok=True)
        label.write_text(version, encoding="utf-8")
    part.touch()
    wait, before = retry_budget.waits(remote.url), -1
    while (on_disk := part.stat().st_size) < (remote.bytes or 0):
        if on_disk > before >= 0:  # the last attempt made progress
            wait = retry_budget.waits(remote.url)
        before = on_disk
        if (problem := _append_missing(remote, part, version, retry_budget.timeout_s, report)) is not None:
            wait(problem)
    _check(part, remote)
    part.rename(target)
    label.unlink(missing_ok=True)
    return target


def _has_version(label: Path, version: str) -> bool:
    """Return whether the bytes on disk belong to the version that the server has now."""
    return bool(version) and label.exists() and label.read_text("utf-8") == version


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _describe(remote: RemoteFile, retry_budget: RetryBudget) -> tuple[int, str]:
    """Ask the server for a file's size and version: a strong ETag, else the date of its last change."""
    descriptions: list[tuple[int, str]] = []

    def keep(response: http.client.HTTPResponse) -> None:
        length = int(response.headers["Content-Length"] or 0)
        if not length and remote.bytes is None:
            raise LoaderError(
                f"{remote.url}: the server sends no Content-Length; add the file's size to the catalogue, as bytes"
            )
        tag = response.headers["ETag"] or ""
        is_strong = bool(tag) and not tag.startswith("W/")
        descriptions.append((length, tag if is_strong else response.headers["Last-Modified"] or ""))

    wait = retry_budget.waits(remote.url)
    while (problem := _request(remote, "HEAD", {}, retry_budget.timeout_s, keep)) is not None:
        wait(problem)
    return descriptions[0]


def _append_missing(
    remote: RemoteFile, part: Path, version: str, timeout_s: float, report: Callable[[int], None]
) -> str | None:
    """Request the missing bytes and append them; return why it failed, or None once the file is complete."""
    on_disk = part.stat().st_size

    def copy(response: http.client.HTTPResponse) -> None:
        begin = on_disk if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if not begin:
            _refuse_page(response, remote)
        _copy(response, part, begin, remote.bytes or 0, report)

    headers = {"Range": f"bytes={on_disk}-", "X-Ms-Version": "2019-12-12"}  # Azure's default version reports no ranges
    if version and on_disk:
        headers["If-Range"] = version  # if the version has changed, the server sends the whole file
    problem = _request(remote, "GET", headers, timeout_s, copy)
    if problem is None and part.stat().st_size < (remote.bytes or 0):
        return "the connection ended early"
    return problem


def _request(
    remote: RemoteFile,
    method: str,
    headers: dict[str, str],
    timeout_s: float,
    take: Callable[[http.client.HTTPResponse], None],
) -> str | None:
    """Send a request and pass its response to ``take``; return why it failed if a retry may help; None on success."""
    if not remote.url.startswith(("http://", "https://")):
        raise LoaderError(f"{remote.url}: only http and https addresses can be downloaded")
    request = urllib.request.Request(remote.url, headers=headers, method=method)  # noqa: S310 - the scheme is checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - the scheme is checked above
            take(response)
    except urllib.error.HTTPError as error:
        if error.code in _PERMANENT:
            raise LoaderError(f"{remote.url}: the server responds with {error.code} {error.reason}") from error
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None


def _refuse_page(response: http.client.HTTPResponse, remote: RemoteFile) -> None:
    """Refuse a web page instead of the file: some servers send a login, an error or a notice with status 200.

    Raises:
        LoaderError: the response is HTML; the bytes on disk are kept.
    """
    head = response.peek(_PAGE_HEAD)[:_PAGE_HEAD]
    is_page = _PAGE_BEGIN.match(head) or (head.isascii() and response.headers.get_content_type() in _PAGES)
    if not is_page or PurePath(remote.name).suffix in _PAGE_SUFFIXES:
        return
    size = int(response.headers["Content-Length"] or 0)
    received = f"{_size(size)} of HTML" if size else "HTML"
    expected = f"{remote.name} is" if remote.bytes in (size, None) else f"{_size(remote.bytes)} are"
    raise LoaderError(
        f"{remote.url}: the server responds with {received} where {expected} expected, such as a login or a notice; "
        f"open the address in a browser, and put the file into the folder as {remote.name}"
    )


def _size(count: int) -> str:
    """Format a number of bytes in GB, MB or bytes."""
    power = next((power for power in (9, 6) if count >= 10**power), 0)
    return f"{count / 10**power:.1f} {'GB' if power == 9 else 'MB'}" if power else f"{count:,} bytes"


def _copy(
    response: http.client.HTTPResponse, part: Path, begin: int, limit: int, report: Callable[[int], None]
) -> None:
    """Write the response after the first ``begin`` bytes; stop after ``limit``, when it must be another file."""
    with part.open("r+b" if begin else "wb") as file:
        file.seek(begin)
        written = begin
        while written <= limit and (chunk := response.read1(_CHUNK_BYTES)):
            file.write(chunk)
            written += len(chunk)
            report(written)


def _check(path: Path, remote: RemoteFile) -> None:
    size = path.stat().st_size
    if remote.bytes in {size, None}:
        if remote.md5 is None:
            return
        with path.open("rb") as file:
            md5 = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if md5 == remote.md5:
            return
        difference = f"its MD5 is {md5}, published is {remote.md5}"
    else:
        difference = f"it has {size:,} bytes, published are {remote.bytes:,}"
    if path.suffix == ".part":
        path.unlink()
        raise ChecksumError(f"{remote.url}: {difference}; it is deleted: fetch it again", file=str(path))
    raise ChecksumError(f"{path}: {difference}; move it away and fetch it again", file=str(path))
