"""The position of an index's builds: which documents have vectors, and which builder reads which documents now.

Each write of a document takes the next sequence number of its shard. A builder leases a range of these numbers, reads
the documents that have them, and stores their vectors. If a builder dies, another builder takes over its lease where it
stopped. The position is stored in the same place as the vectors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from osrerank.errors import FormatError

UNIT = 4096
"""The most sequence numbers of a lease."""


class Head(NamedTuple):
    """The newest changes of a shard.

    Attributes:
        history: the identity of the sequence of changes; an index that was made anew or restored has another history.
        last: the highest sequence number up to which every copy of the shard has all changes; -1 without changes.
        highest: the highest sequence number of a change; -1 without changes.
    """

    history: str
    last: int
    highest: int


class ShardPosition(NamedTuple):
    """How far builders have leased a shard's changes.

    Attributes:
        history: the `Head.history` of the changes.
        next: the first sequence number that no builder has leased.
        term: the highest primary term of the documents that builders have read.
    """

    history: str
    next: int = 0
    term: int = 0


class Lease(NamedTuple):
    """A range of sequence numbers that a builder reads.

    Attributes:
        shard: the shard's number.
        first: the first sequence number that is not built.
        last: the last sequence number of the range.
        owner: the name of the builder.
        until_s: the time at which another builder may take the lease over, in seconds of the wall clock.
    """

    shard: str
    first: int
    last: int
    owner: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Position:
    """Which documents of an index have vectors: those whose numbers were leased, and are in no remaining lease.

    Attributes:
        shards: number of a shard -> how far it is leased.
        leases: the ranges that builders read now.
        files: the files with the vectors; if one of them was deleted, the position is not valid.
        newest: the highest value of the date field that was read; only for builds that follow such a field.
    """

    shards: Mapping[str, ShardPosition] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    files: tuple[str, ...] = ()
    newest: float | None = None

    @classmethod
    def read(cls, content: bytes) -> Self:
        """Parse a stored position.

        Raises:
            FormatError: another program wrote the content.
        """
        try:
            fields = json.loads(content)
            shards = {number: ShardPosition(*shard) for number, shard in fields["shards"].items()}
            leases = tuple(Lease(*lease) for lease in fields["leases"])
            return cls(shards, leases, tuple(fields["files"]), fields["newest"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FormatError(f"the position of a build cannot be read: {error}") from error

    def write(self) -> bytes:
        """Return the position as bytes, for `read`."""
        content = {"shards": self.shards, "leases": self.leases, "files": self.files, "newest": self.newest}
        return json.dumps(content, separators=(",", ":")).encode()

    def is_valid(self, files: Sequence[str]) -> bool:
        """Return whether all files with the vectors are among the files that exist."""
        return set(self.files) <= {*files}

    def with_shards(self, heads: Mapping[str, Head]) -> Self:
        """Return the position for the current shards; shards whose history changed or shrank begin at zero."""
        same = {
            number: shard
            for number, shard in self.shards.items()
            if (head := heads.get(number)) and head.history == shard.history and head.highest >= shard.next - 1
        }
        shards = {number: same.get(number, ShardPosition(head.history)) for number, head in heads.items()}
        return replace(self, shards=shards, leases=tuple(lease for lease in self.leases if lease.shard in same))

    def restart_shard(self, shard: str) -> Self:
        """Return the position with a shard at its beginning."""
        leases = tuple(lease for lease in self.leases if lease.shard != shard)
        return replace(self, shards={**self.shards, shard: ShardPosition(self.shards[shard].history)}, leases=leases)

    def open_ranges(self, shard: str, last: int) -> list[tuple[int, int]]:
        """Return the first and last sequence number of each range of a shard that is not built, up to a number."""
        ranges = [(lease.first, lease.last) for lease in self.leases if lease.shard == shard]
        first = self.shards[shard].next if shard in self.shards else 0
        return [*ranges, (first, last)] if first <= last else ranges

    def built_to(self, shard: str) -> int:
        """Return the sequence number up to which all changes of a shard are built; -1 if the first is not built."""
        first_numbers = [lease.first for lease in self.leases if lease.shard == shard]
        return min([*first_numbers, self.shards[shard].next]) - 1

    def count_open(self, heads: Mapping[str, Head]) -> int:
        """Return the number of sequence numbers that are not built."""
        ranges = [pair for number, head in heads.items() for pair in self.open_ranges(number, head.last)]
        return sum(last - first + 1 for first, last in ranges)

    def claim(self, owner: str, heads: Mapping[str, Head], now_s: float, until_s: float) -> tuple[Self, Lease | None]:
        """Lease a range to a builder; return the new position, and the lease.

        Leases that have expired are taken over before new ranges. If other builders read everything that is open, the
        lease is None.
        """
        expired = next((lease for lease in self.leases if lease.until_s <= now_s and lease.shard in heads), None)
        if expired is not None:
            lease = expired._replace(owner=owner, until_s=until_s)
            others = tuple(other for other in self.leases if other is not expired)
            return replace(self, leases=(lease, *others)), lease
        leased_shards = [lease.shard for lease in self.leases]
        open_shards = [number for number, head in heads.items() if self.shards[number].next <= head.last]
        if not open_shards:
            return self, None
        number = min(open_shards, key=leased_shards.count)
        shard = self.shards[number]
        last = min(shard.next + UNIT - 1, heads[number].last)
        lease = Lease(number, shard.next, last, owner, until_s)
        shards = {**self.shards, number: shard._replace(next=last + 1)}
        return replace(self, shards=shards, leases=(*self.leases, lease)), lease

    def advance(self, lease: Lease, first: int, term: int, until_s: float) -> tuple[Self, Lease | None]:
        """Shorten a lease whose first documents were built; return the new position, and the shorter lease.

        The shorter lease is None if all documents are built, or if another builder has taken the lease over.

        Args:
            lease: the lease that `claim` or this function returned.
            first: the first sequence number that is not built.
            term: the highest primary term of the documents that were read.
            until_s: the time at which another builder may take the shorter lease over.
        """
        current = next((other for other in self.leases if _is_same(other, lease)), None)
        if current is None:
            return self, None
        shorter = None if first > current.last else current._replace(first=first, until_s=until_s)
        others = tuple(other for other in self.leases if other is not current)
        shard = self.shards[current.shard]
        shards = {**self.shards, current.shard: shard._replace(term=max(shard.term, term))}
        return replace(self, shards=shards, leases=others if shorter is None else (*others, shorter)), shorter

    def release(self, owner: str) -> Self:
        """Return the position with a builder's leases expired."""
        leases = tuple(lease._replace(until_s=0.0) if lease.owner == owner else lease for lease in self.leases)
        return replace(self, leases=leases)

    def reopen_since(self, earlier: "Position") -> Self:
        """Return the position in which everything that was built since an earlier position is open again."""
        shards = {
            number: shard._replace(next=min(shard.next, earlier.shards[number].next))
            for number, shard in self.shards.items()
            if number in earlier.shards and earlier.shards[number].history == shard.history
        }
        earlier_leases = [lease._replace(until_s=0.0) for lease in earlier.leases if lease.shard in shards]
        leases = [lease for lease in self.leases if lease.shard in shards and lease.first < shards[lease.shard].next]
        by_range = {(lease.shard, lease.last): lease for lease in [*leases, *earlier_leases]}  # the longer one remains
        return replace(self, shards=shards, leases=tuple(by_range.values()))


def _is_same(first: Lease, second: Lease) -> bool:
    return (first.shard, first.last, first.owner) == (second.shard, second.last, second.owner)


def identity_of(index: str, heads: Mapping[str, Head]) -> str:
    """Return an index's name and UUID; a later index of the same name has another UUID."""
    return f"{index}/{next(iter(heads.values())).history.partition('/')[0]}"


def heads_of_shards(entry: Mapping[str, Any]) -> dict[str, Head]:
    """Return the head of each shard of an index, from the index's entry in a response of ``_stats?level=shards``.

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
