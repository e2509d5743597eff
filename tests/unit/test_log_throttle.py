"""Log lines that are written once in an interval."""

from osrerank._log_throttle import LogThrottle


def test_a_kind_of_log_line_is_due_again_after_its_interval():
    now = [0.0]
    log_throttle = LogThrottle(60.0, lambda: now[0])
    assert [log_throttle.should_log("a"), log_throttle.should_log("a"), log_throttle.should_log(("a", 1))] == [
        True,
        False,
        True,
    ]
    now[0] = 59.9
    assert not log_throttle.should_log("a")
    now[0] = 60.0
    assert log_throttle.should_log("a")


def test_suppressed_log_lines_are_counted_in_the_next_line():
    now = [0.0]
    log_throttle = LogThrottle(60.0, lambda: now[0])
    assert [log_throttle.count_suppressed("a") for _ in range(200)] == [0, *[None] * 199]
    assert log_throttle.count_suppressed("b") == 0
    now[0] = 60.0
    assert [log_throttle.count_suppressed("a"), log_throttle.count_suppressed("a")] == [199, None]
