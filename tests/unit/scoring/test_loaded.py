"""Looking for a model's workers before it is used."""

from dataclasses import dataclass, field

from osrerank.errors import WorkerError
from osrerank.scoring.loaded import FIND_AGAIN_AFTER_S, LoadedModel
from osrerank.settings import Settings
from osrerank.testing import FunctionScorer, ManualClock
from osrerank.types import NEVER, Deadline


@dataclass(frozen=True, slots=True)
class OnWorkers(FunctionScorer):
    """A scorer that notes how long its workers may be looked for, and finds none."""

    asked_s: list[float] = field(default_factory=list)

    def find_workers(self, deadline: Deadline = NEVER) -> None:
        self.asked_s.append(deadline.remaining_s())
        raise WorkerError("there is none")


def test_workers_are_looked_for_in_half_of_the_time_and_once_a_second() -> None:
    scorer, clock = OnWorkers(), ManualClock()
    model = LoadedModel("m", "mono", Settings.load(), scorer, clock=clock)
    for _ in range(3):
        model.find_workers(Deadline.after_ms(10_000, clock))
    assert scorer.asked_s == [5.0]
    clock.sleep(FIND_AGAIN_AFTER_S)
    model.find_workers(NEVER)
    assert scorer.asked_s[1:] == [float("inf")]


def test_what_is_on_no_workers_or_cannot_be_loaded_is_no_failure() -> None:
    LoadedModel("m", "mono", Settings.load(), FunctionScorer()).find_workers(NEVER)
    LoadedModel("/no/such/folder", "mono", Settings.load()).find_workers(NEVER)
