"""What fails, and when: events at numbers of searches, the same for the same seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from tests.toxics import Toxic, ToxicKind

NODE_EVERY = 1200
"""Searches between two ends of a node: the cluster must have copied its shard again before the other one dies."""
AMOUNTS: dict[ToxicKind, Sequence[float]] = {
    "latency": (5, 40, 250),
    "jitter": (20, 150, 600),
    "bandwidth": (20, 100, 400),
    "slow_reader": (0,),
    "reset": (0, 400, 4000),
    "swallow": (0,),
}
WEIGHTS = {"toxic": 60, "kill worker": 14, "hang worker": 8, "kill redis": 7, "kill server": 6, "hang server": 5}
AFTER = {"kill": "start", "hang": "continue", "toxic": "heal"}
NODE_LINKS = ("node-0", "node-1")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that is done as soon as all searches with lower numbers have ended.

    Attributes:
        at: the number.
        act: ``toxic``, ``heal``, ``kill``, ``start``, ``hang`` or ``continue``.
        target: a link, or what is killed or hangs.
        number: which one of them, for workers and nodes.
        toxic: of a link.
    """

    at: int
    act: str
    target: str
    number: int = 0
    toxic: Toxic | None = None

    def __str__(self) -> str:
        toxic_text = f" {self.toxic.kind} {self.toxic.amount:g}" if self.toxic else ""
        number = f" {self.number}" if self.target in ("worker", "node") else ""
        return f"{self.at:6} {self.act} {self.target}{number}{toxic_text}"


def schedule(seed: int, searches: int, links: Sequence[str], *, workers: int) -> list[Event]:
    """Return the events of a run, in order; all is well again for its last tenth, at most 60 searches.

    Faults last for 20 to 100 searches and begin 5 to 45 after the last one has ended, or while it lasts. A node is away
    for longer.
    """
    rng = random.Random(seed)
    quiet = min(60, searches // 10)
    events: list[Event] = []
    start, end, last_node = quiet, searches - quiet, -NODE_EVERY // 2
    busy: dict[tuple[str, int], int] = {}
    while start < end:
        begun, long = start, rng.randint(20, 100)
        if start - last_node > NODE_EVERY:
            act, target, number, last_node, long = "kill", "node", rng.randrange(2), start, 250
        else:
            act, target, number = _drawn(rng, links, workers)
        until = min(end, begun + min(long, max(5, searches // 6)))
        if busy.get((target, number), -1) < begun:
            busy[target, number] = until
            toxic = _toxic(rng, target) if act == "toxic" else None
            events += [Event(begun, act, target, number, toxic), Event(until, AFTER[act], target, number)]
            start = begun + rng.randint(3, 30) if rng.random() < 0.3 else until
        start += rng.randint(5, 45)
    return sorted(events, key=lambda event: event.at)


def _drawn(rng: random.Random, links: Sequence[str], workers: int) -> tuple[str, str, int]:
    drawn = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if drawn == "toxic":
        return "toxic", rng.choice(links), 0
    act, target = drawn.split()
    return act, target, rng.randrange(workers) if target == "worker" else 0


def _toxic(rng: random.Random, link: str) -> Toxic:
    """Return a toxic; between nodes everything is slower already, so it is milder there."""
    kind = rng.choice([kind for kind in AMOUNTS if link not in NODE_LINKS or kind not in ("bandwidth", "slow_reader")])
    amounts = AMOUNTS[kind]
    return Toxic(kind, amounts[0] if link in NODE_LINKS else rng.choice(amounts))
