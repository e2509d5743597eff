"""How far the builds of an index's vectors came, shard by shard, and which builder reads what now.

Each write of a document takes the next sequence number of its shard. Builders claim ranges of these numbers, read the
documents that have them, and store their vectors. The position is kept beside the vectors that it vouches for. A claim
is a lease: if its builder dies, another one takes it over where the first one stopped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from osrerank.errors import FormatError

UNIT = 4096
"""The most sequence numbers that one lease covers."""


class Head(NamedTuple):
    """The newest changes of a shard.

    Attributes:
        history: identifies the sequence of changes; an index that was made anew or restored has another one.
        last: the highest sequence number up to which every copy of the shard has all changes; -1 for none.
        highest: the highest sequence number that was given; -1 for none.
    """

    history: str
    last: int
    highest: int


class ShardPosition(NamedTuple):
    """How far a shard's changes were given to builders.

    Attributes:
        history: `Head.history` of the changes.
        next: the first sequence number that no builder has claimed.
        term: the highest primary term among the documents read.
    """

    history: str
    next: int = 0
    term: int = 0


class Lease(NamedTuple):
    """A range of sequence numbers that a builder reads.

    Attributes:
        shard: the shard's number.
        first: the first sequence number that is not built.
        last: the last one of the range.
        owner: the builder.
        until_s: when another builder may take it over, in seconds of the wall clock.
    """

    shard: str
    first: int
    last: int
    owner: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Position:
    """Which documents of an index have vectors: those whose numbers are claimed and in no remaining lease.

    Attributes:
        shards: number of a shard -> how far it is.
        leases: the ranges that are being read.
        files: the files that hold the vectors; if one is gone, the position is worth nothing.
        newest: the newest value of the date field that was read; for builds that follow such a field.
    """

    shards: Mapping[str, ShardPosition] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    files: tuple[str, ...] = ()
    newest: float | None = None

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parse a stored position.

        Raises:
            FormatError: they are not those of a position.
        """
        try:
            found = json.loads(content)
            shards = {number: ShardPosition(*shard) for number, shard in found["shards"].items()}
            leases = tuple(Lease(*lease) for lease in found["leases"])
            return cls(shards, leases, tuple(found["files"]), found["newest"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FormatError(f"the position of a build cannot be read: {error}") from error

    def write(self) -> bytes:
        """Return the position as bytes."""
        content = {
            "shards": self.shards,
            "leases": self.leases,
            "files": self.files,
            "newest": self.newest,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    def is_valid(self, files: Sequence[str]) -> bool:
        """Return whether all files that held the vectors are still among these."""
        return set(self.files) <= {*files}

    def facing(self, heads: Mapping[str, Head]) -> Self:
        """Return the position for the current shards; one whose history changed or shrank starts from zero."""
        kept = {
            number: shard
            for number, shard in self.shards.items()
            if (head := heads.get(number)) and head.history == shard.history and head.highest >= shard.next - 1
        }
        shards = {number: kept.get(number, ShardPosition(head.history)) for number, head in heads.items()}
        return replace(self, shards=shards, leases=tuple(lease for lease in self.leases if lease.shard in kept))

    def restarted(self, shard: str) -> Self:
        """Return the position with a shard at its beginning."""
        others = tuple(lease for lease in self.leases if lease.shard != shard)
        return replace(self, shards={**self.shards, shard: ShardPosition(self.shards[shard].history)}, leases=others)

    def open(self, shard: str, last: int) -> list[tuple[int, int]]:
        """Return the ranges of a shard's sequence numbers that are not built, up to a number, as first and last."""
        ranges = [(lease.first, lease.last) for lease in self.leases if lease.shard == shard]
        begun = self.shards[shard].next if shard in self.shards else 0
        return [*ranges, (begun, last)] if begun <= last else ranges

    def built_to(self, shard: str) -> int:
        """Return the sequence number up to which all changes of a shard are built; -1 for none."""
        held = [lease.first for lease in self.leases if lease.shard == shard]
        return min([*held, self.shards[shard].next]) - 1

    def left(self, heads: Mapping[str, Head]) -> int:
        """Return how many sequence numbers are not built."""
        return sum(last - first + 1 for number, head in heads.items() for first, last in self.open(number, head.last))

    def claim(self, owner: str, heads: Mapping[str, Head], now_s: float, until_s: float) -> tuple[Self, Lease | None]:
        """Return the position with a range claimed, and its lease; None if others read all that is left.

        A lease that has ended is taken over before new changes are claimed.
        """
        ended = next((lease for lease in self.leases if lease.until_s <= now_s and lease.shard in heads), None)
        if ended is not None:
            mine = ended._replace(owner=owner, until_s=until_s)
            return replace(self, leases=tuple(mine if one is ended else one for one in self.leases)), mine
        busy = [lease.shard for lease in self.leases]
        waiting = [number for number, head in heads.items() if self.shards[number].next <= head.last]
        if not waiting:
            return self, None
        number = min(waiting, key=busy.count)
        shard = self.shards[number]
        last = min(shard.next + UNIT - 1, heads[number].last)
        mine = Lease(number, shard.next, last, owner, until_s)
        shards = {**self.shards, number: shard._replace(next=last + 1)}
        return replace(self, shards=shards, leases=(*self.leases, mine)), mine

    def advanced(self, lease: Lease, first: int, term: int, until_s: float) -> tuple[Self, Lease | None]:
        """Return the position after a lease's documents before a number were built, and what is left of the lease.

        Args:
            lease: as `claim` or this function returned it.
            first: the first sequence number that is not built.
            term: the highest primary term among the documents read.
            until_s: when another builder may take the rest over.
        """
        held = next((one for one in self.leases if _is_same(one, lease)), None)
        if held is None:  # it ended, and another builder has it
            return self, None
        left = None if first > held.last else held._replace(first=first, until_s=until_s)
        others = tuple(one for one in self.leases if one is not held)
        shard = self.shards[held.shard]
        shards = {**self.shards, held.shard: shard._replace(term=max(shard.term, term))}
        return replace(self, shards=shards, leases=others if left is None else (*others, left)), left

    def released(self, owner: str) -> Self:
        """Return the position with a builder's leases ended."""
        leases = tuple(lease._replace(until_s=0.0) if lease.owner == owner else lease for lease in self.leases)
        return replace(self, leases=leases)

    def back_to(self, before: "Position") -> Self:
        """Return the position with all that was built since an earlier one open again."""
        shards = {
            number: shard._replace(next=min(shard.next, before.shards[number].next))
            for number, shard in self.shards.items()
            if number in before.shards and before.shards[number].history == shard.history
        }
        earlier = [lease._replace(until_s=0.0) for lease in before.leases if lease.shard in shards]
        since = [lease for lease in self.leases if lease.shard in shards and lease.first < shards[lease.shard].next]
        kept = {(lease.shard, lease.last): lease for lease in [*since, *earlier]}  # an earlier one begins before
        return replace(self, shards=shards, leases=tuple(kept.values()))


def _is_same(one: Lease, other: Lease) -> bool:
    return (one.shard, one.last, one.owner) == (other.shard, other.last, other.owner)


def identity_of(index: str, heads: Mapping[str, Head]) -> str:
    """Return an index's name, and what tells it from a later one of the same name."""
    return f"{index}/{next(iter(heads.values())).history.partition('/')[0]}"


def heads_of_shards(entry: Mapping[str, Any]) -> dict[str, Head]:
    """Return the head of each shard of an index, by its entry in an answer to ``_stats?level=shards``.

    Raises:
        LookupError: a shard has no started primary copy, or the service gives no sequence numbers.
    """
    return {number: _head(entry["uuid"], copies) for number, copies in entry["shards"].items()}


def _head(uuid: str, copies: Sequence[Mapping[str, Any]]) -> Head:
    primary = next((copy for copy in copies if copy["routing"]["primary"]), None)
    if primary is None or "seq_no" not in primary:
        raise LookupError("a shard has no primary copy with sequence numbers")
    numbers = primary["seq_no"]
    history = f"{uuid}/{primary['commit']['user_data']['history_uuid']}"
    return Head(history, int(numbers["global_checkpoint"]), int(numbers["max_seq_no"]))
