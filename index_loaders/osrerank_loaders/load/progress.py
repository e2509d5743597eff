"""Show the progress of a load or download on standard error: a bar on a terminal, and periodic lines elsewhere."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from osrerank._progress import ProgressLines
from osrerank.formats.sources import is_virtual_path
from osrerank_loaders.load.job import Report

MEGABYTE = 1_000_000


@contextlib.contextmanager
def load_progress(files: Sequence[str]) -> Iterator[Report]:
    """Show the progress of a load of these files. Yield the function to call with the progress (`Report`)."""
    total_bytes = None  # of standard input or an ir_datasets collection
    if not any(map(is_virtual_path, files)):
        total_bytes = sum(Path(name).stat().st_size for name in files)
    columns = (
        TextColumn("{task.fields[records]:,} records, {task.fields[rate]:,.0f}/s"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task_id = progress.add_task("load", total=total_bytes, records=0, rate=0.0)
        lines = ProgressLines()

        def report(records: int, read_bytes: int) -> None:
            elapsed_s = progress.tasks[0].elapsed or 0.0
            rate = records / elapsed_s if elapsed_s else 0.0
            progress.update(task_id, completed=read_bytes, records=records, rate=rate)
            lines.report(records, total=None, unit="records")

        yield report


@contextlib.contextmanager
def download_progress(name: str, total_bytes: int | None) -> Iterator[Callable[[int], None]]:
    """Show the progress of a file's download. Yield a function to call with the number of bytes on disk."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task_id = progress.add_task(name, total=total_bytes)
        lines = ProgressLines()

        def report(bytes_on_disk: int) -> None:
            progress.update(task_id, completed=bytes_on_disk)
            total_mb = None if total_bytes is None else total_bytes // MEGABYTE
            lines.report(bytes_on_disk // MEGABYTE, total_mb, f"MB of {name}")

        yield report
