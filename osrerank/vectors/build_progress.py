"""Track which documents of an index have vectors, and which documents each builder is working on.

Builders are processes that run ``osrerank vectors build``. They share the work and can resume it. An engine numbers the
writes to a shard: 0, 1, 2 and so on. A builder leases a range of these sequence numbers, such as 0 to 4095, reads the
documents that have them, and stores the documents' vectors. If the builder dies, its lease expires, and another builder
continues the range. The progress is stored beside the vectors.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from osrerank._bad_value import describe_bad_value
from osrerank.errors import FormatError

LEASE_SIZE = 4096
"""The maximum number of sequence numbers in a lease."""


class Head(NamedTuple):
    """The highest sequence numbers of a shard.

    Attributes:
        history: the index's UUID and the shard's history UUID, such as ``kT2.../9fQ...``. It changes if the index is
            recreated or restored.
        global_checkpoint: the sequence number up to which all shard copies contain all writes. -1 before any write.
        max_seq_no: the highest sequence number of a write. -1 before any write.
    """

    history: str
    global_checkpoint: int
    max_seq_no: int


class ShardProgress(NamedTuple):
    """How far builders have leased a shard.

    Attributes:
        history: the `Head.history` of the shard when it was leased.
        next_seq_no: the first sequence number that was never leased.
        term: the highest primary term of the documents that builders have read. The term grows when another copy of the
            shard becomes the primary one. If a document below ``next_seq_no`` has a higher term, the shard has lost
            writes and used their sequence numbers again.
    """

    history: str
    next_seq_no: int = 0
    term: int = 0


class Lease(NamedTuple):
    """A range of sequence numbers whose documents a builder reads.

    Attributes:
        shard: the shard's number.
        first: the first sequence number of the range. It moves up while the builder stores vectors.
        last: the last sequence number of the range.
        owner: the name of the builder.
        expires_at_s: when the lease expires, in seconds since the epoch.
    """

    shard: str
    first: int
    last: int
    owner: str
    expires_at_s: float


@dataclass(frozen=True, slots=True)
class BuildProgress:
    """How far builders have got with the vectors of an index.

    A sequence number is built if it was leased and no lease contains it any more. If the ``next_seq_no`` of a shard is
    8192, and its only lease is from 4200 to 8191, the numbers from 0 to 4199 are built.

    Attributes:
        shards: how far each shard is leased, by shard number.
        leases: the ranges that builders are working on, or left when they died.
        files: the names of the files that store the vectors. Empty if a side index stores them.
        highest_value: the highest value of the date or number field among the built documents. None without such a
            field.
    """

    shards: Mapping[str, ShardProgress] = field(default_factory=dict)
    leases: tuple[Lease, ...] = ()
    files: tuple[str, ...] = ()
    highest_value: float | None = None

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Parse the bytes that `to_bytes` returned.

        Raises:
            FormatError: the bytes do not contain build progress.
        """
        try:
            fields = json.loads(content)
            shards = {number: ShardProgress(*shard) for number, shard in fields["shards"].items()}
            leases = tuple(Lease(*lease) for lease in fields["leases"])
            return cls(shards, leases, tuple(fields["files"]), fields["newest"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise FormatError(f"it cannot be parsed: {describe_bad_value(error)}") from error

    def to_bytes(self) -> bytes:
        content = {"shards": self.shards, "leases": self.leases, "files": self.files, "newest": self.highest_value}
        return json.dumps(content, separators=(",", ":")).encode()

    def has_all_files(self, existing_files: Sequence[str]) -> bool:
        """Return whether all files with the vectors are among the existing ones."""
        return set(self.files) <= set(existing_files)

    def with_shards(self, heads: Mapping[str, Head]) -> Self:
        """Return the progress for the current shards. Shards that were recreated or lost writes start again."""
        unchanged_shards = {}
        for number, head in heads.items():
            shard = self.shards.get(number)
            if shard is not None and shard.history == head.history and shard.next_seq_no - 1 <= head.max_seq_no:
                unchanged_shards[number] = shard
        shards = {number: unchanged_shards.get(number, ShardProgress(head.history)) for number, head in heads.items()}
        leases = tuple(lease for lease in self.leases if lease.shard in unchanged_shards)
        return replace(self, shards=shards, leases=leases)

    def restart_shard(self, shard: str) -> Self:
        """Return the progress as if nothing of a shard had been built."""
        leases = tuple(lease for lease in self.leases if lease.shard != shard)
        return replace(self, shards={**self.shards, shard: ShardProgress(self.shards[shard].history)}, leases=leases)

    def list_unbuilt_ranges(self, shard: str, last: int) -> list[tuple[int, int]]:
        """Return the first and last numbers of a shard's unbuilt ranges up to ``last``.

        In ``[(4200, 8191), (8192, 9000)]``, the first range is leased, and the last one was never leased.
        """
        ranges = [(lease.first, lease.last) for lease in self.leases if lease.shard == shard]
        first = self.shards[shard].next_seq_no if shard in self.shards else 0
        if first <= last:
            ranges.append((first, last))
        return ranges

    def find_built_checkpoint(self, shard: str) -> int:
        """Return the sequence number up to which a shard is built without gaps. -1 if the first one is not built."""
        first_unbuilt = [lease.first for lease in self.leases if lease.shard == shard]
        return min([*first_unbuilt, self.shards[shard].next_seq_no]) - 1

    def count_unbuilt(self, heads: Mapping[str, Head]) -> int:
        """Return how many sequence numbers up to the global checkpoints are not built."""
        return sum(
            last - first + 1
            for number, head in heads.items()
            for first, last in self.list_unbuilt_ranges(number, head.global_checkpoint)
        )

    def claim(
        self, owner: str, heads: Mapping[str, Head], now_s: float, expires_at_s: float
    ) -> tuple[Self, Lease | None]:
        """Lease a range to a builder. Return the new progress and the lease.

        Expired leases are taken over first. The lease is None if everything is built or leased to others.

        Args:
            owner: the name of the builder.
            heads: the heads of the shards, which limit the range.
            now_s: the current time, in seconds since the epoch.
            expires_at_s: when the new lease expires, in seconds since the epoch.
        """
        for expired_lease in self.leases:
            if expired_lease.expires_at_s <= now_s and expired_lease.shard in heads:
                lease = expired_lease._replace(owner=owner, expires_at_s=expires_at_s)
                other_leases = tuple(other for other in self.leases if other is not expired_lease)
                return replace(self, leases=(lease, *other_leases)), lease
        shards_to_lease = [
            number for number, head in heads.items() if self.shards[number].next_seq_no <= head.global_checkpoint
        ]
        if not shards_to_lease:
            return self, None
        leased_shards = [lease.shard for lease in self.leases]
        number = min(shards_to_lease, key=leased_shards.count)  # the one with the fewest leases
        shard = self.shards[number]
        last = min(shard.next_seq_no + LEASE_SIZE - 1, heads[number].global_checkpoint)
        lease = Lease(number, shard.next_seq_no, last, owner, expires_at_s)
        shards = {**self.shards, number: shard._replace(next_seq_no=last + 1)}
        return replace(self, shards=shards, leases=(*self.leases, lease)), lease

    def advance(self, lease: Lease, first: int, term: int, expires_at_s: float) -> tuple[Self, Lease | None]:
        """Shorten a lease after its first documents were built. Return the new progress and the shorter lease.

        The shorter lease is None if the whole range is built, or if another builder has taken the lease over.

        Args:
            lease: the lease as `claim` or `advance` returned it.
            first: the first sequence number that is still not built.
            term: the highest primary term of the documents that were read.
            expires_at_s: when the shorter lease expires, in seconds since the epoch.
        """
        identity = (lease.shard, lease.last, lease.owner)  # what stays the same when a lease is shortened
        current_lease = next(
            (other for other in self.leases if (other.shard, other.last, other.owner) == identity), None
        )
        if current_lease is None:
            return self, None
        leases = [other for other in self.leases if other is not current_lease]
        shorter_lease = None
        if first <= current_lease.last:
            shorter_lease = current_lease._replace(first=first, expires_at_s=expires_at_s)
            leases.append(shorter_lease)
        shard = self.shards[current_lease.shard]
        shards = {**self.shards, current_lease.shard: shard._replace(term=max(shard.term, term))}
        return replace(self, shards=shards, leases=tuple(leases)), shorter_lease

    def release(self, owner: str) -> Self:
        """Let a builder's leases expire at once, so that others can claim them."""
        leases = tuple(lease._replace(expires_at_s=0.0) if lease.owner == owner else lease for lease in self.leases)
        return replace(self, leases=leases)

    def reopen_built_since(self, earlier: "BuildProgress") -> Self:
        """Return the progress in which everything that was built since an earlier state counts as unbuilt.

        The leases of the earlier state are expired, so that others can claim them. Shards that the earlier state lacks,
        or that were recreated since, are left out.
        """
        shards = {
            number: shard._replace(next_seq_no=min(shard.next_seq_no, earlier.shards[number].next_seq_no))
            for number, shard in self.shards.items()
            if number in earlier.shards and earlier.shards[number].history == shard.history
        }
        leases = [
            lease for lease in self.leases if lease.shard in shards and lease.first < shards[lease.shard].next_seq_no
        ]
        leases += [lease._replace(expires_at_s=0.0) for lease in earlier.leases if lease.shard in shards]
        # Of two leases with the same end, the one from the earlier state is longer. It comes last, so it is kept.
        leases_by_range = {(lease.shard, lease.last): lease for lease in leases}
        return replace(self, shards=shards, leases=tuple(leases_by_range.values()))


def index_identity(index: str, heads: Mapping[str, Head]) -> str:
    """Return an index's name and UUID, such as ``news/kT2...``. A later index of the same name has another identity."""
    any_head = next(iter(heads.values()))
    uuid, _, _ = any_head.history.partition("/")
    return f"{index}/{uuid}"


def parse_heads(entry: Mapping[str, Any]) -> dict[str, Head]:
    """Return the head of each shard of an index, by shard number.

    Args:
        entry: the index's entry in a response of ``_stats?level=shards``.

    Raises:
        LookupError: a shard has no started primary copy, or the engine reports no sequence numbers.
    """
    heads = {}
    for number, copies in entry["shards"].items():
        primary: Mapping[str, Any] = next((copy for copy in copies if copy["routing"]["primary"]), {})
        if "seq_no" not in primary:
            raise LookupError("a shard has no primary copy with sequence numbers")
        history = f"{entry['uuid']}/{primary['commit']['user_data']['history_uuid']}"
        checkpoint, maximum = primary["seq_no"]["global_checkpoint"], primary["seq_no"]["max_seq_no"]
        heads[number] = Head(history, int(checkpoint), int(maximum))
    return heads
