"""Download the official files: resume interrupted ones, check size and MD5."""

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
from osrerank_loaders.load.retry import Patience

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
        name: the name of the file that is written.
        url: an address of http or https.
        bytes: its size; None where that is not published: then the server's word is taken.
        md5: in hexadecimal digits; None where it is not published: then the file is not verified.
    """

    name: Annotated[str, Field(pattern=r"^[^/\\.][^/\\]*$")]
    url: Annotated[str, Field(pattern=r"^https?://[^/]")]
    bytes: Annotated[int, Field(gt=0)] | None = None
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None


@dataclass(frozen=True, slots=True)
class Download:
    """The files of a collection."""

    about: str
    files: Annotated[tuple[RemoteFile, ...], Field(min_length=1)]


def published(catalogue: Path | None = None) -> dict[str, Download]:
    """Return what can be downloaded, by name.

    Args:
        catalogue: a JSON file, ``{name: {"about": ..., "files": [{"name", "url", "bytes", "md5"}]}}``, in place of
            the package's own.

    Raises:
        LoaderError: the file cannot be read, or is of another form; the message names the first field that is wrong.
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
    patience: Patience | None = None,
    report: Callable[[int], None] = lambda _bytes: None,
) -> Path:
    """Download a file, or the missing rest; return its path once size and MD5 are right, as far as they are published.

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
    version = ""
    if remote.bytes is None or remote.md5 is None:
        size, version = _described(remote, patience)
        remote = replace(remote, bytes=remote.bytes or size)
    label = part.with_name(f"{part.name}.version")
    if remote.md5 is None and not _is_of(label, version):  # nothing would show that two versions were joined
        part.unlink(missing_ok=True)
        label.write_text(version, encoding="utf-8")
    part.touch()
    wait, before = patience.waits(remote.url), -1
    while (there := part.stat().st_size) < (remote.bytes or 0):
        if there > before >= 0:
            wait = patience.waits(remote.url)
        before = there
        if (problem := _append(remote, part, version, patience.timeout_s, report)) is not None:
            wait(problem)
    _check(part, remote)
    part.rename(target)
    label.unlink(missing_ok=True)
    return target


def _is_of(label: Path, version: str) -> bool:
    """Return whether what was fetched before is of the version that the server has now."""
    return bool(version) and label.exists() and label.read_text("utf-8") == version


def sha256_of(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _described(remote: RemoteFile, patience: Patience) -> tuple[int, str]:
    """Return how many bytes the server says that a file has, and what names this version: its ETag, else its date."""
    found: list[tuple[int, str]] = []

    def keep(answer: http.client.HTTPResponse) -> None:
        length = int(answer.headers["Content-Length"] or 0)
        if not length and remote.bytes is None:
            raise LoaderError(
                f"{remote.url}: the server sends no Content-Length; add the file's size to the catalogue, as bytes"
            )
        tag = answer.headers["ETag"] or ""
        is_strong = bool(tag) and not tag.startswith("W/")
        found.append((length, tag if is_strong else answer.headers["Last-Modified"] or ""))

    wait = patience.waits(remote.url)
    while (problem := _ask(remote, "HEAD", {}, patience.timeout_s, keep)) is not None:
        wait(problem)
    return found[0]


def _append(
    remote: RemoteFile, part: Path, version: str, timeout_s: float, report: Callable[[int], None]
) -> str | None:
    """Request the bytes that are missing and append them; return why the connection ended early, or None."""
    there = part.stat().st_size

    def copy(answer: http.client.HTTPResponse) -> None:
        begin = there if answer.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        if not begin:
            _refuse_page(answer, remote)
        _copy(answer, part, begin, remote.bytes or 0, report)

    headers = {"Range": f"bytes={there}-", "X-Ms-Version": "2019-12-12"}  # Azure's default version reports no ranges
    if version and there:
        headers["If-Range"] = version  # of another version the whole file comes
    problem = _ask(remote, "GET", headers, timeout_s, copy)
    if problem is None and part.stat().st_size < (remote.bytes or 0):
        return "the connection ended early"
    return problem


def _ask(
    remote: RemoteFile,
    method: str,
    headers: dict[str, str],
    timeout_s: float,
    take: Callable[[http.client.HTTPResponse], None],
) -> str | None:
    """Send a request and give its answer to ``take``; return why it failed where it may be sent again, or None."""
    if not remote.url.startswith(("http://", "https://")):
        raise LoaderError(f"{remote.url}: only http and https addresses are fetched")
    request = urllib.request.Request(remote.url, headers=headers, method=method)  # noqa: S310 - the scheme is checked above
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310 - the scheme is checked above
            take(answer)
    except urllib.error.HTTPError as error:
        if error.code in _PERMANENT:
            raise LoaderError(f"{remote.url}: the server answers {error.code} {error.reason}") from error
        return f"{error.code} {error.reason}"
    except (OSError, http.client.HTTPException) as error:
        return str(error) or type(error).__name__
    return None


def _refuse_page(answer: http.client.HTTPResponse, remote: RemoteFile) -> None:
    """Refuse a page in place of a file: a login, an error or a notice, which servers send with status 200.

    Raises:
        LoaderError: the answer is HTML; what was fetched before is kept.
    """
    head = answer.peek(_PAGE_HEAD)[:_PAGE_HEAD]
    is_page = _PAGE_BEGIN.match(head) or (head.isascii() and answer.headers.get_content_type() in _PAGES)
    if not is_page or PurePath(remote.name).suffix in _PAGE_SUFFIXES:
        return
    size = int(answer.headers["Content-Length"] or 0)
    found = f"{_size(size)} of HTML" if size else "HTML"
    expected = f"{remote.name} is" if remote.bytes in (size, None) else f"{_size(remote.bytes)} are"
    raise LoaderError(
        f"{remote.url}: the server answers with {found} where {expected} expected, such as a login or a notice; "
        f"open the address in a browser, and put the file into the folder as {remote.name}"
    )


def _size(count: int) -> str:
    """Return a number of bytes in the greatest unit that it fills."""
    power = next((power for power in (9, 6) if count >= 10**power), 0)
    return f"{count / 10**power:.1f} {'GB' if power == 9 else 'MB'}" if power else f"{count:,} bytes"


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
    if remote.bytes in {size, None}:
        if remote.md5 is None:
            return
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
