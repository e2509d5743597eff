"""Append lines to a log file that several processes share."""

import os
from pathlib import Path

FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0)


class AppendedLines:
    """A file to which several processes append whole lines.

    Each line is written by one call, which local Unix file systems do not interleave with other writes. The file is
    opened anew for each line, so it can be renamed or removed at any time.

    Args:
        path: the file. The first line creates it and its folder. Only the file's owner can read it.
        max_bytes: the maximum size of the file, in bytes.
    """

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self._max_bytes = path, max_bytes

    def append(self, line: str) -> None:
        """Append a line and a line break.

        Raises:
            OSError: the file cannot be written, or would be too large.
        """
        content = f"{line}\n".encode()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, FLAGS, 0o600)
        try:
            if os.fstat(file).st_size + len(content) > self._max_bytes:
                raise OSError(f"the file has reached its limit of {self._max_bytes / 1e6:g} MB; move the file away")
            written = os.write(file, content)
            if written < len(content):
                os.write(file, b"\n")  # ends the incomplete line
                raise OSError(f"only {written} of {len(content)} bytes were written; free some space")
        finally:
            os.close(file)
