"""A joined model and a store of its documents' states.

A score is always computed from the record: a document without one is encoded, merged and rounded first. So the first
search and the second give the same bits, and the score cache stays valid.
"""

import functools
import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from osrerank._platform import renew_after_fork
from osrerank.errors import InferenceError, OsrerankError
from osrerank.scoring.card import ModelCard
from osrerank.scoring.inputs import InputBuilder, Pieces, Tokens
from osrerank.scoring.local import WINDOW, LocalScorer
from osrerank.scoring.onnx_scorer import JoinedBackend
from osrerank.scoring.states.background import Background
from osrerank.scoring.states.configured import States
from osrerank.scoring.states.join import Joiner
from osrerank.scoring.states.keys import record_keys, side_of
from osrerank.scoring.states.record import Record, TextStates
from osrerank.scoring.states.store import BYTES, HITS, MISSES, STATES_OFF, StateStore
from osrerank.types import NEVER, Deadline, RequestStates, Scores

ENCODED_AT_ONCE = 16
"""Documents tokenised at a time, while those before them are being encoded."""
HELD = 128
"""Documents whose unmerged states are in memory at a time."""
MOST_LATE, MOST_LATE_CALLS = 256, 4
"""Documents of a call that are encoded after its deadline, and such calls that may wait."""

logger = logging.getLogger(__name__)


class JoinedScorer(LocalScorer):
    """A mono or duo model of the layout ``joined``, which scores records; safe to use from several threads.

    Args:
        directory: the model's, for its digest.
        card: what the outputs mean.
        builder: makes sequences from texts.
        backend: encodes texts, and has the join graph.
        states: where records are kept, and how much of a document.
    """

    def __init__(
        self,
        directory: Path,
        card: ModelCard,
        builder: InputBuilder,
        backend: JoinedBackend,
        states: States,
    ) -> None:
        super().__init__(directory, card, builder, _Encoder(backend, card))
        self._joined = backend
        self._store, self._profile, self._secret = states.store, states.profile, states.secret
        self._writes, self._encodings = Background(), Background(MOST_LATE_CALLS)
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Start over without threads in a forked child: they stay with the parent."""
        executor = ThreadPoolExecutor(self._joined.threads, thread_name_prefix="osrerank-join")
        self.joiner = Joiner(self._joined.join, self.card.joining.layers, executor)
        self._executor = executor

    @functools.cached_property
    def side(self) -> bytes:
        """Identity of the model's document side and profile, 16 bytes: what its records depend on besides the text."""
        return side_of(self._directory, self.card, self._profile, self._joined.files[0])

    @functools.cached_property
    def identity(self) -> str:
        return f"{super().identity}/states/{self._profile.factor:g}/{self._profile.bits}"

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
        states: RequestStates | None = None,
    ) -> Scores:
        self._check(tuples)
        pieces = self._builder.query(query)
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        failures: dict[int, str] = {}
        reached = inferences = truncated = encoded = known_before = 0
        while reached < len(tuples) and not deadline.passed:
            window = tuples[reached : reached + WINDOW]
            different, places = self._different(documents, window)
            records, failed, made = self._records(documents, different, pieces, deadline, states)
            able = [place for place, indices in enumerate(different) if all(at in records for at in indices)]
            raw = self._joined_scores(pieces, [[records[at] for at in different[place]] for place in able])
            known = dict(zip(able, raw.tolist(), strict=True))
            done = len(window)
            for at, (place, sign) in enumerate(places):
                if place in known and not math.isfinite(known[place]):
                    failures[reached + at] = f"{self.model} gave a score that is not a finite number"
                elif place in known:
                    values[reached + at] = self._logit(np.array([sign * known[place]], dtype=np.float32))
                elif reasons := [failed[index] for index in different[place] if index in failed]:
                    failures[reached + at] = reasons[0]
                else:
                    done = min(done, at)
            inferences += len(able)
            encoded, known_before = encoded + made, known_before + len(records) - made
            truncated += sum(records[at].cut for at in {*chain.from_iterable(different[place] for place in able)})
            reached += done
            if done < len(window):
                break
        return Scores(
            values,
            failures,
            reached,
            inferences=inferences,
            encoded=encoded,
            known=known_before,
            truncated=truncated,
            query_truncated=pieces.cut,
        )

    @property
    def store(self) -> StateStore | None:
        """Where records are kept; None where they are not."""
        return self._store

    def keys_of(self, texts: Sequence[str]) -> list[bytes]:
        """Return the keys of texts' records."""
        return record_keys(self.side, texts)

    def known(self, keys: Sequence[bytes], states: RequestStates | None = None) -> set[bytes]:
        brought, stored = self._found(keys, states)
        if states is not None:
            self._give(stored, states)
        return brought.keys() | stored.keys()

    def cost_of(self, texts: Sequence[str]) -> tuple[float, int]:
        """Compute texts' records, which are not kept; return the seconds and the bytes that they took.

        Raises:
            InferenceError: a text could not be encoded.
        """
        began = time.perf_counter()
        made, failed = self._encoded(texts, range(len(texts)), self._builder.query(""), NEVER)
        if failed:
            raise InferenceError(next(iter(failed.values())), model=self.model)
        took_s = time.perf_counter() - began
        keys = self.keys_of(texts)
        return took_s, sum(len(record.write(keys[at], self._secret)) for at, record in made.items())

    def remember(self, texts: Sequence[str], states: StateStore | None = None) -> int:
        """Compute and keep the records that are not there; return how many were computed.

        Args:
            texts: as the model reads them.
            states: a store that is to have all of them, too.

        Raises:
            InferenceError: a text could not be encoded.
            OsrerankError: a store does not take records, or there is none.
        """
        if self._store is None and states is None:
            raise OsrerankError(STATES_OFF)
        keys = self.keys_of(texts)
        brought, stored = self._found(keys, states)
        new = {key: at for at, key in enumerate(keys) if key not in brought and key not in stored}
        made, failed = self._encoded(texts, list(new.values()), self._builder.query(""), NEVER)
        if failed:
            raise InferenceError(next(iter(failed.values())), model=self.model)
        records = {keys[at]: record for at, record in made.items()}
        for store, lacking in ((self._store, records), (states, {**stored, **records})):
            if store is not None and lacking and not self._write(store, lacking):
                raise OsrerankError(f"the {store.name} of document states took nothing; the log says why")
        return len(made)

    def close(self) -> None:
        super().close()
        self._encodings.close()
        self._writes.close()
        self._executor.shutdown()
        if self._store is not None and self._store.name != "file":  # the file is open for all of this process
            self._store.close()

    def _joined_scores(self, query: Pieces, seen: Sequence[Sequence[Record]]) -> npt.NDArray[np.float32]:
        try:
            return self.joiner.scores(self._joined.query(self._builder.alone(query).ids), seen)
        except Exception as error:
            raise InferenceError(f"{self.model} failed in ONNX Runtime: {error}", model=self.model) from error

    def _records(
        self,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        query: Pieces,
        deadline: Deadline,
        states: RequestStates | None,
    ) -> tuple[dict[int, Record], dict[int, str], int]:
        """Return the records of the tuples' documents by index, why some could not be made, and how many were made.

        Those that were not there are encoded, until the deadline, and kept.
        """
        needed = list(dict.fromkeys(chain.from_iterable(tuples)))
        keys = dict(zip(needed, record_keys(self.side, (documents[at] for at in needed)), strict=True))
        brought, stored = self._found(list(keys.values()), states)
        if states is not None:
            self._give(stored, states)
        known = {**brought, **stored}
        records = {at: known[key] for at, key in keys.items() if key in known}
        new = [at for at in needed if at not in records]
        made, failed = self._encoded(documents, new, query, deadline)
        self._keep({keys[at]: record for at, record in made.items()}, states)
        late = [documents[at] for at in new if at not in made and at not in failed]
        if late and self._store is not None:
            self._encodings.submit(functools.partial(self._catch_up, late[:MOST_LATE]))
        return {**records, **made}, failed, len(made)

    def _encoded(
        self, documents: Sequence[str], new: Sequence[int], query: Pieces, deadline: Deadline
    ) -> tuple[dict[int, Record], dict[int, str]]:
        """Return documents' records by index, and why some could not be made, as far as time allows.

        What the encoder gives of a document is many times as large as its record, so that some are encoded at a time.
        """
        made: dict[int, Record] = {}
        failed: dict[int, str] = {}
        for start in range(0, len(new), HELD):
            if deadline.passed:
                break
            records, failures = self._some_encoded(documents, new[start : start + HELD], query, deadline)
            made, failed = {**made, **records}, {**failed, **failures}
        return made, failed

    def _some_encoded(
        self, documents: Sequence[str], new: Sequence[int], query: Pieces, deadline: Deadline
    ) -> tuple[dict[int, Record], dict[int, str]]:
        cut: dict[int, bool] = {}
        with self._batcher.call(deadline) as call:
            for start in range(0, len(new), ENCODED_AT_ONCE):
                if deadline.passed:
                    break
                some = new[start : start + ENCODED_AT_ONCE]
                pieces = self._builder.documents([documents[at] for at in some], query)
                cut |= {at: one.cut for at, one in zip(some, pieces, strict=True)}
                call.add([self._builder.alone(one) for one in pieces])
            outcome = call.result()
        layers, hidden = self.card.joining.layers, self._joined.hidden
        made = {
            new[place]: Record.of(_states(row, layers, hidden, cut=cut[new[place]]), self._profile)
            for place, row in outcome.outputs.items()
        }
        return made, {new[place]: reason for place, reason in outcome.failures.items()}

    def _found(
        self, keys: Sequence[bytes], states: RequestStates | None
    ) -> tuple[dict[bytes, Record], dict[bytes, Record]]:
        """Return the records that a search brought, and those that it lacks and the store has."""
        wanted = list(dict.fromkeys(keys))
        brought = self._read(wanted, states) if states is not None else {}
        left = [key for key in wanted if key not in brought]
        return brought, self._read(left, self._store) if self._store is not None else {}

    def _read(self, keys: Sequence[bytes], store: RequestStates) -> dict[bytes, Record]:
        """Return the records of a store that are this model's, by key."""
        found = store.read(keys) if keys else {}
        shape = self.card.joining.layers, self._joined.hidden, self._profile, self._builder.max_tokens
        read = {key: Record.read(content, key, self._secret) for key, content in found.items()}
        records = {key: record for key, record in read.items() if record is not None and record.fits(*shape)}
        HITS.labels(store.name).inc(len(records))
        MISSES.labels(store.name).inc(len(keys) - len(records))
        BYTES.labels(store.name, "read").inc(sum(map(len, found.values())))
        return records

    def _give(self, records: Mapping[bytes, Record], states: RequestStates) -> None:
        """Give records to a search that lacks them."""
        if records:
            states.write({key: record.write(key, self._secret) for key, record in records.items()})

    def _catch_up(self, texts: Sequence[str]) -> None:
        """Compute the records that a deadline cut off, while nobody waits."""
        try:
            self.remember(texts)
        except OsrerankError as error:
            logger.info("the states of %d documents were not computed after a deadline: %s", len(texts), error)

    def _keep(self, records: Mapping[bytes, Record], states: RequestStates | None) -> None:
        """Give records to the search that needed them, and write them to the store while nobody waits."""
        if states is not None:
            self._give(records, states)
        if self._store is not None and records:
            self._writes.submit(functools.partial(self._write, self._store, records))

    def _write(self, store: StateStore, records: Mapping[bytes, Record]) -> int:
        contents = {key: record.write(key, self._secret) for key, record in records.items()}
        written = store.write(contents)
        if written:
            BYTES.labels(store.name, "written").inc(sum(map(len, contents.values())))
        return written


class _Encoder:
    """Texts in, a row of numbers each: the vector, then the states of each joined layer. For a batcher."""

    packed = True
    parallel = True
    budget_tokens = 1

    def __init__(self, backend: JoinedBackend, card: ModelCard) -> None:
        self._backend = backend
        self._model = card.name
        self.name, self.precision = backend.name, backend.precision
        self.threads, self.files = backend.threads, backend.files

    def run(self, sequences: Sequence[Tokens]) -> npt.NDArray[np.float32]:
        try:
            (encoded,) = [self._backend.encoded(tokens.ids) for tokens in sequences]
        except Exception as error:
            raise InferenceError(f"{self._model} failed in ONNX Runtime: {error}", model=self._model) from error
        return np.concatenate([part.reshape(1, -1) for part in encoded.values()], axis=1)

    def close(self) -> None:
        self._backend.close()


def _states(row: npt.NDArray[np.float32], layers: int, hidden: int, *, cut: bool) -> TextStates:
    """Return what an encoder's row of numbers says of a text."""
    states = row[hidden:].reshape(layers, -1, hidden) if layers else np.zeros((0, 0, hidden), dtype=np.float32)
    return TextStates(states, np.ones(states.shape[1], dtype=np.uint16), row[:hidden], cut)
