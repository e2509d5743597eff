"""Download the official files of collections, resuming interrupted downloads and checking sizes and MD5s."""

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

from osrerank._bad_value import describe_validation_error
from osrerank.errors import ChecksumError, LoaderError
from osrerank.formats.files import hash_file
from osrerank_loaders.load.retry import RetryBudget

_CHUNK_BYTES = 1 << 20
_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_HTML_SUFFIXES = frozenset({".html", ".htm", ".xhtml"})
_HTML_BEGIN = re.compile(rb"\s*<(?:!doctype html|html)\b", re.IGNORECASE)
_PEEKED_BYTES = 512
_PERMANENT_STATUSES = frozenset({400, 401, 403, 404, 405, 410, 501})
"""The HTTP statuses after which a retry would also fail."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A published file, as its publisher describes it.

    Attributes:
        name: the name under which the file is saved.
        url: the http or https address.
        bytes: the size in bytes. If None, the file must have the size in the server's response.
        md5: the MD5 in hexadecimal digits. If None, the content is not verified.
    """

    name: Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
    url: Annotated[str, Field(pattern=r"^https?://[^/]")]
    bytes: Annotated[int, Field(gt=0)] | None = None
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """A collection that can be downloaded: its description in one line, and its files."""

    about: str
    files: Annotated[tuple[RemoteFile, ...], Field(min_length=1)]


def read_catalogue(catalogue: Path | None = None) -> dict[str, Download]:
    """Return the collections that can be downloaded, by name.

    Args:
        catalogue: a JSON file, ``{name: {"about": ..., "files": [{"name", "url", "bytes", "md5"}]}}``, to read instead
            of the package's.

    Raises:
        LoaderError: the catalogue cannot be read or is invalid. The message states the first invalid field.
    """
    source = catalogue or resources.files("osrerank_loaders").joinpath("downloads.json")
    schema = TypeAdapter(dict[str, Download], config=ConfigDict(extra="forbid", strict=True))
    try:
        return schema.validate_json(source.read_bytes())
    except OSError as error:
        raise LoaderError(f"{source}: {error.strerror or error}", file=str(source)) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise LoaderError(f"{source}: {field}: {describe_validation_error(first)}", file=str(source)) from None


def fetch(
    remote: RemoteFile,
    folder: Path,
    *,
    retry_budget: RetryBudget | None = None,
    report: Callable[[int], None] = lambda _bytes: None,
) -> Path:
    """Download a file or its missing part, check its size and MD5, and return its path.

    The name of an incomplete file ends in ``.part``.

    Args:
        remote: the published file.
        folder: the folder to save it in.
        retry_budget: how long to retry while no byte arrives.
        report: called with the number of bytes on disk.

    Raises:
        ChecksumError: the size or the MD5 differs from the published one. A new download is then deleted.
        LoaderError: the server does not have the file, or did not respond.
    """
    target = folder / remote.name
    if target.exists():
        _check(target, remote)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    retry_budget = retry_budget or RetryBudget()
    version = ""  # of the file on the server, if it is not identified by size and MD5
    if remote.bytes is None or remote.md5 is None:
        size, version = _request_size_and_version(remote, retry_budget)
        remote = replace(remote, bytes=remote.bytes or size)
    version_file = part.with_name(f"{part.name}.version")
    # Without an MD5, a mixture of two versions would go unnoticed.
    if remote.md5 is None and not _has_version(version_file, version):
        part.unlink(missing_ok=True)
        version_file.write_text(version, encoding="utf-8")
    part.touch()
    wait_or_raise = retry_budget.start_waits(remote.url)  # waits before a retry, or raises at the end of the budget
    previous_bytes = 0
    while (bytes_on_disk := part.stat().st_size) < (remote.bytes or 0):
        if bytes_on_disk > previous_bytes:
            wait_or_raise = retry_budget.start_waits(remote.url)
            previous_bytes = bytes_on_disk
        failure = _append_missing(remote, part, version, retry_budget.timeout_s, report)
        if failure is not None:
            wait_or_raise(failure)
    _check(part, remote)
    part.rename(target)
    version_file.unlink(missing_ok=True)
    return target


def _has_version(version_file: Path, version: str) -> bool:
    return bool(version) and version_file.exists() and version_file.read_text("utf-8") == version


def _request_size_and_version(remote: RemoteFile, retry_budget: RetryBudget) -> tuple[int, str]:
    """Request a file's size and version, such as ``(1024, '"5d8c72a5"')``.

    The version is the strong ETag or, if there is none, the Last-Modified date. It is "" if the server sends neither.
    """
    sizes_and_versions: list[tuple[int, str]] = []  # `read_headers` adds the only one

    def read_headers(response: http.client.HTTPResponse) -> None:
        length = int(response.headers["Content-Length"] or 0)
        if not length and remote.bytes is None:
            raise LoaderError(
                f"{remote.url}: the server sends no Content-Length; add bytes, the file's size, to its catalogue entry"
            )
        version = response.headers["ETag"] or ""
        if not version or version.startswith("W/"):  # a weak ETag does not identify the bytes
            version = response.headers["Last-Modified"] or ""
        sizes_and_versions.append((length, version))

    wait_or_raise = retry_budget.start_waits(remote.url)
    while True:
        failure = _request(remote, "HEAD", {}, retry_budget.timeout_s, read_headers)
        if failure is None:
            break
        wait_or_raise(failure)
    return sizes_and_versions[0]


def _append_missing(
    remote: RemoteFile, part: Path, version: str, timeout_s: float, report: Callable[[int], None]
) -> str | None:
    """Request the missing bytes and append them. Return the reason of a failure, or None if the file is complete."""
    bytes_on_disk = part.stat().st_size

    def append(response: http.client.HTTPResponse) -> None:
        offset = bytes_on_disk if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if not offset:
            _refuse_html(response, remote)
        _write(response, part, offset, remote.bytes or 0, report)

    headers = {"Range": f"bytes={bytes_on_disk}-"}
    headers["X-Ms-Version"] = "2019-12-12"  # Azure's default version does not support ranges
    if version and bytes_on_disk:
        headers["If-Range"] = version  # the server sends the whole file if the version has changed
    failure = _request(remote, "GET", headers, timeout_s, append)
    if failure is None and part.stat().st_size < (remote.bytes or 0):
        return "the connection ended early"
    return failure


def _request(
    remote: RemoteFile,
    method: str,
    headers: dict[str, str],
    timeout_s: float,
    handle: Callable[[http.client.HTTPResponse], None],
) -> str | None:
    """Send a request and call ``handle`` with its response.

    Returns:
        None on success, or the reason of a failure after which a retry could succeed, such as "503 Slow Down".

    Raises:
        LoaderError: the request failed, and a retry would also fail.
    """
    if not remote.url.startswith(("http://", "https://")):
        raise LoaderError(f"{remote.url}: only http and https addresses can be downloaded")
    request = urllib.request.Request(remote.url, headers=headers, method=method)  # noqa: S310 - the scheme is checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:  # noqa: S310 - the scheme is checked above
            handle(response)
    except urllib.error.HTTPError as error:
        if error.code in _PERMANENT_STATUSES:
            raise LoaderError(f"{remote.url}: the server responds with {error.code} {error.reason}") from error
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None


def _refuse_html(response: http.client.HTTPResponse, remote: RemoteFile) -> None:
    """Raise `LoaderError` for a web page, because some servers send a login, an error or a notice with status 200."""
    head = response.peek(_PEEKED_BYTES)[:_PEEKED_BYTES]
    looks_like_html = _HTML_BEGIN.match(head)
    # an archive that a server wrongly calls HTML contains bytes other than ASCII
    is_called_html = head.isascii() and response.headers.get_content_type() in _HTML_TYPES
    if not (looks_like_html or is_called_html) or PurePath(remote.name).suffix in _HTML_SUFFIXES:
        return
    size = int(response.headers["Content-Length"] or 0)
    received = f"{_format_size(size)} of HTML" if size else "HTML"
    # the name, if the sizes would show no difference
    expected = f"{remote.name} is" if remote.bytes in (size, None) else f"{_format_size(remote.bytes)} are"
    raise LoaderError(
        f"{remote.url}: the server responds with {received} where {expected} expected, such as a login or a notice; "
        f"open the address in a browser, and put the file into the folder as {remote.name}"
    )


def _format_size(n_bytes: int) -> str:
    """Return a size such as "1.1 GB", "18.9 MB" or "4,096 bytes"."""
    for unit, unit_bytes in (("GB", 10**9), ("MB", 10**6)):
        if n_bytes >= unit_bytes:
            return f"{n_bytes / unit_bytes:.1f} {unit}"
    return f"{n_bytes:,} bytes"


def _write(
    response: http.client.HTTPResponse, part: Path, offset: int, expected_bytes: int, report: Callable[[int], None]
) -> None:
    """Write the response into the file, starting at an offset. Stop if the file becomes larger than expected."""
    with part.open("r+b" if offset else "wb") as file:
        file.seek(offset)
        n_bytes = offset
        while n_bytes <= expected_bytes:
            chunk = response.read1(_CHUNK_BYTES)
            if not chunk:
                break
            file.write(chunk)
            n_bytes += len(chunk)
            report(n_bytes)


def _check(path: Path, remote: RemoteFile) -> None:
    """Raise `ChecksumError` if a file's size or MD5 is not the published one. A new download is then deleted."""
    difference = _find_difference(path, remote)
    if not difference:
        return
    if path.suffix == ".part":
        path.unlink()
        raise ChecksumError(f"{remote.url}: {difference}; the file is deleted: download it again", file=str(path))
    raise ChecksumError(f"{path}: {difference}; move the file away and download it again", file=str(path))


def _find_difference(path: Path, remote: RemoteFile) -> str:
    """Return how a file's size or MD5 differs from the published one, or "" if it does not differ."""
    size = path.stat().st_size
    if remote.bytes not in {size, None}:
        return f"the size is {size:,} bytes, but {remote.bytes:,} are published"
    if remote.md5 is None:
        return ""
    md5 = hash_file(path, "md5")
    return "" if md5 == remote.md5 else f"the MD5 is {md5}, but {remote.md5} is published"
