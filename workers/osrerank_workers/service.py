"""A worker process: its model, the chunks that it has taken, and its heartbeat in the worker registry."""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from celery.worker import state
from prometheus_client import REGISTRY
from redis import RedisError

from osrerank._platform import freeze_objects
from osrerank.errors import InferenceError, OsrerankError, PayloadError
from osrerank.metrics import QUEUE_WAIT_SECONDS, WORKER_CHUNKS, WORKER_PAIRS, WORKER_SECONDS, serve_metrics
from osrerank.scoring.card import POINTWISE, Kind
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.local import LocalModel
from osrerank.scoring.registry import as_scorer, load
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.messages import SCORE, ChunkRequest, Heartbeat, Reply
from osrerank.scoring.remote.signing import UNSIGNED_RISK, Signer, count_refusal
from osrerank.scoring.remote.worker_registry import BEAT_S, DEAD_AFTER_S, WorkerRegistry, queue_of
from osrerank.settings import Settings
from osrerank.types import NEVER, Deadline, Scorer, Scores, is_encoder
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.probes import Status
from osrerank_workers.queue_metrics import QueueCollector
from osrerank_workers.replays import Replays
from osrerank_workers.traced import chunk_span, set_outcome

logger = logging.getLogger(__name__)

PROBE_S = 10.0
"""Time between two checks of the model, in seconds."""
STALE_S = 60.0
"""Time without a passed check after which a worker counts as hanging, in seconds."""
REPLY_TTL_S = 60
"""How long an unread reply is kept, in seconds; after that its client is gone."""
REPLY_RETRY_S = 5.0
"""How long a worker retries to send a reply while Redis does not respond, in seconds."""
WEIGHT = 0.2
"""Weight of the newest chunk in the moving average of seconds per chunk."""
MERGING_TASKS, SINGLE_TASKS = 16, 4
"""Chunks scored at a time by default: enough to fill batches that several chunks share; for a model that scores each
chunk alone, just enough that the next one is ready."""

PROBES: Mapping[Kind, tuple[int, ...]] = {**dict.fromkeys(POINTWISE, (0,)), "duo": (0, 1)}
"""The tuple that a model of each kind is checked with."""


class WorkerModel(NamedTuple):
    """A loaded model.

    Attributes:
        scorer: the scorer of chunks, with the score cache if one is configured.
        model: the same scorer without the cache.
        tasks: the number of chunks to score at a time.
        kind: the model's kind.
    """

    scorer: Scorer
    model: Scorer
    tasks: int
    kind: Kind


class WorkerService:
    """Scores or encodes chunks in Celery's threads; all share one scorer, which merges their sequences into batches.

    Args:
        settings: the settings of the model, its backend, the cache and the broker.
        scorer: the scorer to use instead of the model that the settings name.

    Attributes:
        broker: the health of the consumer's connection to the broker, which the consumer updates.
    """

    def __init__(self, settings: Settings, scorer: Scorer | None = None) -> None:
        self.settings = settings
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._scorer = scorer
        self._uncached = scorer
        self._redis = connect(settings.broker())
        self._signer = Signer.of(settings)
        self.registry = WorkerRegistry(self._redis, settings.model, self._signer)
        self._replays = Replays(self.registry.now_s)
        self._collector: QueueCollector | None = None
        self.broker = BrokerHealth("the consumer")
        self._heartbeats = BrokerHealth("the heartbeat")
        self._renewed_at = 0.0
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._taking = True
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seconds_per_chunk = 0.0
        self._probed_at = 0.0
        self._probe: tuple[int, ...] = PROBES["cross-encoder"]
        self.queue = ""
        self.tasks = settings.worker_tasks or SINGLE_TASKS

    @property
    def scorer(self) -> Scorer:
        """The loaded scorer; an `InferenceError` before the model is loaded."""
        if self._scorer is None:
            raise InferenceError("the worker has not loaded its model yet")
        return self._scorer

    def load(self) -> None:
        """Load the model, check it, and start a thread that checks it every `PROBE_S` seconds.

        Raises:
            OsrerankError: the model cannot be loaded, or its check fails.
        """
        if self._scorer is None:
            loaded = _load(self.settings)
            self._scorer, self._uncached = loaded.scorer, loaded.model
            self._probe = PROBES[loaded.kind]
            self.tasks = self.settings.worker_tasks or loaded.tasks
        self.queue = queue_of(self.settings.model, self.scorer.identity)
        self.probe()
        freeze_objects()
        self._start(self._keep_probing)
        logger.info("%s is loaded: %s", self.scorer.model, self.scorer.identity)

    def begin(self) -> None:
        """Serve the metrics and send heartbeats, so that clients find this worker."""
        if self.settings.metrics_port:
            self._collector = QueueCollector(self._redis, self.registry, self._signer, self.queue)
            REGISTRY.register(self._collector)
        serve_metrics(self.settings.metrics_port)
        if not self._signer.signs:
            logger.warning("[unsigned] %s", UNSIGNED_RISK)
        self._start(self._keep_renewing)
        logger.info("worker %s takes chunks of %s from %s", self.worker, self.settings.model, self.queue)

    def stop_taking(self) -> None:
        """Take no more chunks; those already taken are finished."""
        self._taking = False

    def close(self) -> None:
        """Leave the registry and release the model, once all chunks are finished."""
        self._ended.set()
        for thread in self._threads:
            thread.join(BEAT_S * 4)
        try:
            self.registry.remove(self.worker)
        except RedisError as error:
            logger.warning("[broker-away] the worker could not sign off: %s", type(error).__name__)
        if self._collector is not None:
            REGISTRY.unregister(self._collector)
        if self._scorer is not None:
            self._scorer.close()
        self._redis.close()

    def hold(self, chunk: str) -> None:
        """Note that this worker has taken a chunk; the heartbeat reports it, so the client does not resend it."""
        with self._lock:
            self._held.add(chunk)

    def handle(
        self, chunk: str, message: object, *, task: str = SCORE, headers: Mapping[str, object] | None = None
    ) -> None:
        """Score or encode a chunk and reply; a chunk past its deadline is dropped.

        Args:
            chunk: the id of the chunk, which is the id of its task.
            message: the sealed request.
            task: the name of the task that brought it.
            headers: the task's headers; they continue the client's trace if the message is valid.
        """
        self.hold(chunk)
        started = time.monotonic()
        try:
            request = self._request(chunk, message, task)
            with chunk_span(self.queue, request, headers, queries=self.settings.trace_queries) as traced:
                outcome = self._handle(request, started)
                set_outcome(traced, outcome)
        except PayloadError as error:
            outcome = "refused"
            count_refusal("request", error)
        finally:
            self._release(chunk)
        WORKER_CHUNKS.labels(outcome).inc()

    def probe(self) -> None:
        """Score or encode a test input without the cache, and note the time.

        Raises:
            OsrerankError: the model does not work.
        """
        scorer = self._uncached or self.scorer
        if isinstance(scorer, EncoderScorer):
            scorer.encoder.encode(["is this worker ready"], "document")
            self._probed_at = time.monotonic()
            return
        scores = scorer.score("is this worker ready", ["it is", "it is not"], [self._probe])
        if scores.failures:
            raise InferenceError(next(iter(scores.failures.values())), model=self.scorer.model)
        self._probed_at = time.monotonic()

    def status(self) -> Status:
        """Return the worker's state for probes, without a request to the broker or a computation."""
        now = time.monotonic()
        is_loaded = self._probed_at > 0
        hangs = is_loaded and now - self._probed_at >= STALE_S
        reasons = {
            "the model is being loaded": not is_loaded,
            f"the model has scored nothing for {STALE_S:g} s": hangs,
            "the worker is stopping": not self._taking,
            **{part.reason: bool(part.reason) for part in (self.broker, self._heartbeats)},
            "the broker does not answer": now - self._renewed_at > DEAD_AFTER_S,
        }
        reason = next((reason for reason, holds in reasons.items() if holds), "")
        return Status(live=not hangs, ready=not reason, reason=reason, held=len(self._held))

    def heartbeat(self) -> Heartbeat:
        """Return the worker's state for clients.

        Raises:
            RedisError: the broker's time is not known yet, and the broker does not respond.
        """
        with self._lock:
            held = tuple(self._held)
        return Heartbeat(
            worker=self.worker,
            host=socket.gethostname(),
            queue=self.queue,
            model=self.scorer.model,
            identity=self.scorer.identity,
            advice=self.scorer.advice,
            taking=self._taking and not self.broker.reason,
            held=held,
            seconds_per_chunk=self._seconds_per_chunk,
            tasks=self.tasks,
            probed_s=time.monotonic() - self._probed_at,
            sent_s=self.registry.now_s(),
        )

    def _request(self, chunk: str, message: object, task: str) -> ChunkRequest:
        """Verify and decode the request that a task brings.

        Raises:
            PayloadError: the request is missing, belongs to another task, is not trusted, or is a replay.
        """
        request = ChunkRequest.decode(self._signer.open("request", message))
        if request.chunk != chunk or request.task != task:
            raise PayloadError("a request came to the wrong task", reason="misplaced")
        self._replays.admit(request)
        return request

    def _handle(self, request: ChunkRequest, started: float) -> str:
        """Compute a chunk, reply, and return the outcome: scored, failed, dropped or unanswered."""
        QUEUE_WAIT_SECONDS.observe(max(0.0, self.registry.clock.to_server(started) - request.sent_s))
        deadline = self._deadline(request)
        if deadline.passed:
            return "dropped"
        scores, vectors, error = self._compute(request, deadline)
        spent_s = time.monotonic() - started
        reply = Reply(request.chunk, self.worker, self.scorer.identity, scores, error, vectors)
        if not self._send_reply(request.reply_queue, reply, deadline):
            return "unanswered"
        if error:
            return "failed"
        self._account(len(request.documents) if scores is None else scores.inferences, spent_s)
        return "scored"

    def _compute(
        self, request: ChunkRequest, deadline: Deadline
    ) -> tuple[Scores | None, list[bytes | str] | None, str]:
        """Return scores, vector records and an error message: only one of the three is set."""
        if request.identity != self.scorer.identity:
            return None, None, "the worker has a different model than the one that the chunk names"
        try:
            if request.vector_bits:
                return None, self._encode(request, deadline), ""
            return self.scorer.score(request.query, request.documents, request.tuples, deadline=deadline), None, ""
        except OsrerankError as error:
            logger.warning("[chunk-failed] scoring a chunk failed: %s", type(error).__name__)
            return None, None, str(error)
        except Exception as error:  # noqa: BLE001 - the client must not wait, whatever happened
            logger.warning("[chunk-failed] scoring a chunk failed: %s", type(error).__name__)
            return None, None, f"{type(error).__name__}: {error}"

    def _encode(self, request: ChunkRequest, deadline: Deadline) -> list[bytes | str]:
        """Return each document's vector record, or its error; empty bytes for a document that was not reached.

        Raises:
            InferenceError: the model is not an encoder, or the client asks for vectors of another precision.
        """
        scorer = self.scorer
        if not isinstance(scorer, EncoderScorer) or scorer.vectors.records.bits != request.vector_bits:
            fix = "set the same model and OSRERANK_VECTORS_PROFILE for client and worker"
            raise InferenceError(f"this worker has no vectors of {request.vector_bits} bits: {fix}")
        documents = scorer.vectors.find(request.documents, deadline).documents
        return [text.records[0].body() if text.records else text.failures.get(0, b"") for text in documents]

    def _deadline(self, request: ChunkRequest) -> Deadline:
        if request.deadline_s is None:
            return NEVER
        return Deadline(self.registry.clock.to_local(request.deadline_s))

    def _send_reply(self, reply_queue: str, reply: Reply, deadline: Deadline) -> bool:
        """Put a reply into its client's queue, with retries for `REPLY_RETRY_S`; return whether the reply was sent."""
        pipeline = self._redis.pipeline(transaction=False)
        message = self._signer.seal("reply", reply.encode())
        give_up_at = min(time.monotonic() + REPLY_RETRY_S, deadline.at_s or float("inf"))
        while True:
            pipeline.rpush(reply_queue, message)
            pipeline.expire(reply_queue, REPLY_TTL_S)
            try:
                pipeline.execute()
            except RedisError as error:
                if time.monotonic() >= give_up_at:
                    logger.warning("[broker-away] a reply could not be delivered: %s", type(error).__name__)
                    return False
                time.sleep(0.1)
            else:
                return True

    def _account(self, computed: int, spent_s: float) -> None:
        """Update the metrics and the seconds per chunk; chunks computed at the same time share the elapsed time."""
        WORKER_PAIRS.inc(computed)
        WORKER_SECONDS.observe(spent_s)
        with self._lock:
            newest_s = spent_s / max(1, min(len(self._held), self.tasks))
            average_s = self._seconds_per_chunk
            self._seconds_per_chunk = newest_s if average_s == 0 else (1 - WEIGHT) * average_s + WEIGHT * newest_s

    def _release(self, chunk: str) -> None:
        with self._lock:
            self._held.discard(chunk)

    def _start(self, step: Callable[[], None]) -> None:
        thread = threading.Thread(target=self._run_thread, args=(step,), name=f"osrerank{step.__name__}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run_thread(self, step: Callable[[], None]) -> None:
        """Run a background thread; stop the worker on an unexpected error, which would otherwise go unnoticed."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - no error may end the thread unnoticed
            if not self._ended.is_set():
                logger.critical("[model-broken] the worker cannot score or send heartbeats, and stops: %s", error)
                self.stop_taking()
                state.should_stop = 1

    def _keep_renewing(self) -> None:
        """Send heartbeats until the worker ends, less often while Redis does not respond."""
        while not self._ended.is_set():
            pause_s = BEAT_S
            try:
                self.registry.renew(self.heartbeat())
            except RedisError as error:
                pause_s = self._heartbeats.failed(error)
            else:
                self._heartbeats.answered()
                self._renewed_at = time.monotonic()
            self._ended.wait(pause_s)

    def _keep_probing(self) -> None:
        """Check the model every `PROBE_S` seconds; a failure stops the worker, so that it fails no further chunks."""
        while not self._ended.wait(PROBE_S):
            self.probe()


def _load(settings: Settings) -> WorkerModel:
    """Load the settings' model, behind the score cache if one is configured and the model is not an encoder."""
    from osrerank.scoring.cache.scorer import behind_cache  # noqa: PLC0415 - only when a worker starts

    model = load(settings, in_worker=True)
    uncached = as_scorer(model, settings)
    is_cached = settings.redis_url is not None and settings.cache_mb > 0 and not is_encoder(model)
    scorer = behind_cache(uncached, settings) if is_cached else uncached
    if not isinstance(model, LocalModel):  # a rerank server takes many requests at once
        return WorkerModel(scorer, uncached, MERGING_TASKS, "cross-encoder")
    return WorkerModel(scorer, uncached, MERGING_TASKS if model.merges_calls else SINGLE_TASKS, model.card.kind)
