"""Test doubles for tests without a model or a server: a scorer, an encoder, a transport and a clock."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from opensearchpy.serializer import JSONSerializer

from osrerank.errors import InferenceError
from osrerank.types import NEVER, Advice, Deadline, Scores

__all__ = ["ArithmeticEncoder", "CannedTransport", "FunctionScorer", "ManualClock", "overlap"]


def overlap(query: str, document: str) -> float:
    """Return the fraction of the query's words that occur in the document, such as 0.5 for "wing lift" and "a wing"."""
    query_words, document_words = set(query.lower().split()), set(document.lower().split())
    return len(query_words & document_words) / max(len(query_words), 1)


class ManualClock:
    """A clock that moves only when `sleep` is called, for example in ``Deadline.after_ms(100, clock)``. Thread-safe.

    Args:
        now_s: the time at first, in seconds.
    """

    def __init__(self, now_s: float = 1_000_000.0) -> None:
        self._now_s = now_s
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        """Move the clock forward without waiting, in place of ``time.sleep``."""
        with self._lock:
            self._now_s += seconds


@dataclass(frozen=True, slots=True)
class FunctionScorer:
    """Scores documents with a function. An ``(i, j)`` tuple gets the score of document i minus that of document j.

    Attributes:
        function: a function of query and document that returns a logit.
        unscorable: the texts whose scoring fails.
        seconds_per_pair: the time that scoring takes for each tuple, in seconds.
        sleep: the function that waits for ``seconds_per_pair``, such as `ManualClock.sleep`, which only moves a clock.
        broken: whether every call raises an error.
    """

    function: Callable[[str, str], float] = overlap
    unscorable: frozenset[str] = frozenset()
    seconds_per_pair: float = 0.0
    sleep: Callable[[float], None] = time.sleep
    broken: bool = False

    @property
    def model(self) -> str:
        return "testing/function"

    @property
    def identity(self) -> str:
        return f"{self.model}/{id(self.function)}"

    @property
    def advice(self) -> Advice:
        return Advice()

    def score(
        self,
        query: str,
        documents: Sequence[str],
        tuples: Sequence[tuple[int, ...]],
        *,
        deadline: Deadline = NEVER,
    ) -> Scores:
        """Score the tuples one by one until the deadline."""
        if self.broken:
            raise InferenceError("this scorer is broken on purpose", model=self.model)
        values = np.full(len(tuples), np.nan, dtype=np.float32)
        failures = {}
        n_attempted = 0
        for tuple_index, document_indices in enumerate(tuples):
            if deadline.passed:
                break
            if self.seconds_per_pair:
                self.sleep(self.seconds_per_pair)
            n_attempted += 1
            texts = [documents[index] for index in document_indices]
            if not self.unscorable.isdisjoint(texts):
                failures[tuple_index] = "unscorable on purpose"
                continue
            first, *others = [self.function(query, text) for text in texts]
            values[tuple_index] = first - sum(others)
        return Scores(values, failures, reached=n_attempted, inferences=n_attempted - len(failures))

    def probabilities(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
        return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class ArithmeticEncoder:
    """The backend of a bi-encoder whose vectors count token ids: number i counts the ids with remainder i modulo 32.

    The vectors are scaled to norm 1. For the ids 1, 33 and 2, the numbers 1 and 2 have the ratio 2 to 1.

    Args:
        before: a function that is called with a document's token ids before it is encoded. It can wait, raise an
            error, or move a clock.
        threads: the number of texts that are encoded at the same time.

    Attributes:
        encoded_ids: the token ids of the documents encoded so far.
    """

    # The properties of a backend (`osrerank.scoring.backends.base.Backend`), and the length of a vector.
    name = "arithmetic"
    precision = "fp32"
    hidden = 32
    is_packed = True
    is_parallel = True
    budget_tokens = 1
    files = ("tokenizer.json",)

    def __init__(self, before: Callable[[npt.NDArray[np.int64]], object] | None = None, threads: int = 2) -> None:
        self.threads = threads
        self.encoded_ids: list[npt.NDArray[np.int64]] = []
        self._before = before

    def run(self, sequences: Sequence[Any]) -> npt.NDArray[np.float32]:
        """Return the vectors of texts ``(n, hidden)``, of norm 1."""
        try:
            return np.concatenate([self._encode(tokens.ids) for tokens in sequences])
        except Exception as error:
            raise InferenceError(str(error)) from error

    def _encode(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        is_query = threading.current_thread().name.startswith("osrerank-query")  # queries have threads of their own
        if not is_query:
            if self._before is not None:
                self._before(ids)
            self.encoded_ids.append(ids)
        counts = np.bincount(ids % self.hidden, minlength=self.hidden).astype(np.float32)
        vector = counts / np.linalg.norm(counts)
        return vector.reshape(1, self.hidden)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


class CannedTransport:
    """An opensearch-py transport that records requests and returns the same response to each.

    Requests for mappings, settings, the version and the progress of vector builds are not recorded. Their responses say
    that an index has the fields ``title`` and ``text``, no default search pipeline, and no vectors from a build.

    Args:
        hosts: ignored.
        answer: the response, or an exception to raise.
        options: ignored.

    Attributes:
        requests: the recorded requests, such as ``{"method": "POST", "url": "/notes/_search", "params": {},
            "body": {...}}``.
    """

    def __init__(self, hosts: Any = None, *, answer: Any = None, **options: Any) -> None:  # noqa: ARG002 - the interface
        self.answer = answer
        self.serializer = JSONSerializer()
        self.requests: list[dict[str, Any]] = []

    def perform_request(self, method: str, url: str, params: Any = None, body: Any = None, **options: Any) -> Any:
        """Record the request and return the response."""
        if url.endswith("/_mapping"):
            mapping = {"mappings": {"properties": {"title": {"type": "text"}, "text": {"type": "text"}}}}
            return dict.fromkeys(url.rpartition("/")[0].strip("/").split(","), mapping)
        if "/_settings/" in url or url == "/":
            return {}
        if url.startswith("/osrerank-vectors-") and "position-" in str(body):  # asks for the progress of vector builds
            return {"hits": {"hits": []}}
        self.requests.append({"method": method, "url": url, "params": dict(params or {}), "body": body, **options})
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        """Do nothing: there is no connection."""
