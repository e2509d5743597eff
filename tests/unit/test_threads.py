"""The threads of osrerank: errors of tasks, closing, and the end of the process."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest

from osrerank._threads import DaemonThreads, NativeCode
from osrerank.embedded.storage.engine import Engine
from osrerank.errors import InferenceError, WorkerError
from osrerank.scoring.remote.delivery import Delivery, PendingChunk
from osrerank.scoring.remote.signing import Signer
from osrerank.scoring.remote.worker_group import LiveWorkers
from osrerank.types import NEVER
from tests.waiting import wait_until


def test_the_end_of_the_process_waits_for_native_code_and_admits_no_new_call() -> None:
    native, inside, leave = NativeCode(), threading.Event(), threading.Event()

    def stay() -> None:
        with native:
            inside.set()
            assert leave.wait(10)

    def enter() -> None:
        with native:
            raise AssertionError("it was let in")

    threads = DaemonThreads(3, "test")
    staying = threads.submit(stay)
    assert inside.wait(10)
    ending = threads.submit(native.wait_for_exit)
    wait_until(lambda: native._is_exiting, 10)
    with pytest.raises(InferenceError, match="the Python process is exiting"):
        threads.submit(enter).result(10)
    with native:  # the main thread may still close what it uses
        assert not ending.done()
        leave.set()
        staying.result(10)
    ending.result(10)


def test_an_error_of_a_task_reaches_its_caller_and_the_thread_continues() -> None:
    threads = DaemonThreads(1, "test")
    with pytest.raises(SystemExit):
        threads.submit(lambda: exec("raise SystemExit")).result(10)
    assert threads.submit(max, 1, 2).result(10) == 2


def test_closing_a_thread_cancels_waiting_tasks_and_refuses_new_ones() -> None:
    threads, hold, started = DaemonThreads(1, "test"), threading.Event(), threading.Event()
    running = threads.submit(lambda: (started.set(), hold.wait(10)))
    assert started.wait(10)
    waiting = threads.submit(max, 1, 2)
    threads.close(wait=False)
    assert waiting.cancelled()
    hold.set()
    running.result(10)
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(max, 1, 2)


class Broken:
    """A Redis whose answers nobody expects, and its application: whatever is sent is taken."""

    def blpop(self, *_arguments: Any, **_options: Any) -> Any:
        raise ValueError("an answer of another kind")

    def heartbeats(self) -> Any:
        raise ValueError("heartbeats of another kind")

    def send_task(self, *_arguments: Any, **_options: Any) -> None:
        pass


def test_errors_in_the_threads_that_read_replies_and_the_registry_reach_the_calls() -> None:
    broken: Any = Broken()
    delivery = Delivery(broken, broken, broken, Signer())
    chunk = PendingChunk("c1", "queue", b"", NEVER)
    delivery.deliver([chunk], NEVER)
    assert str(chunk.outcome) == "the replies of workers could not be read (ValueError: an answer of another kind)"
    delivery.close()
    broken: Any = Broken()
    with pytest.raises(WorkerError, match="broker"):
        LiveWorkers(broken, "m").find_group()


def test_an_error_in_the_thread_that_refreshes_an_index_does_not_stop_it(tmp_path: Any) -> None:
    engine, failures = Engine.shared(tmp_path), iter([ValueError("once")])

    def failing_once(self: Mapping[str, Any], live: Any, refresh: Any = Engine.refresh) -> None:
        for error in failures:
            raise error
        refresh(engine, live)
        refreshed.set()

    refreshed = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "refresh", failing_once)
        from osrerank import connect

        with connect(f"embedded:{tmp_path}") as client:
            client.index(index="i", body={"text": "low blood pressure"})
            assert refreshed.wait(10)
            assert client.count(index="i")["count"] == 1
    engine.release()
