"""Log lines that are written once in an interval."""

from osrerank._log_throttle import LogThrottle


def test_a_kind_of_log_line_is_due_again_after_its_interval():
    now = [0.0]
    due = LogThrottle(60.0, lambda: now[0])
    assert [due.is_due("a"), due.is_due("a"), due.is_due(("a", 1))] == [True, False, True]
    now[0] = 59.9
    assert not due.is_due("a")
    now[0] = 60.0
    assert due.is_due("a")


def test_suppressed_log_lines_are_counted_in_the_next_line():
    now = [0.0]
    due = LogThrottle(60.0, lambda: now[0])
    assert [due.count_unlogged("a") for _ in range(200)] == [0, *[None] * 199]
    assert due.count_unlogged("b") == 0
    now[0] = 60.0
    assert [due.count_unlogged("a"), due.count_unlogged("a")] == [199, None]
