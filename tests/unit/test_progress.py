"""Progress that is written to a pipe."""

import io

from osrerank._progress import ProgressLines


def reported(file: io.StringIO, total: int | None) -> list[str]:
    now_s = 0.0
    lines = ProgressLines(file, interval_s=5.0, clock=lambda: now_s)
    for done in range(1, 13):
        now_s += 1.0
        lines.report(100 * done, total, "queries")
    return file.getvalue().splitlines()


def test_progress_on_a_pipe_is_a_line_every_few_seconds() -> None:
    assert reported(io.StringIO(), 1500) == [
        "500 of 1,500 queries, 100.0 a second, 10 s left",
        "1,000 of 1,500 queries, 100.0 a second, 5 s left",
    ]
    assert reported(io.StringIO(), None) == ["500 queries, 100.0 a second", "1,000 queries, 100.0 a second"]
