"""What a worker process does: it loads a model, scores chunks, replies to clients and sends heartbeats.

A chunk is a part of a client's request: some of the texts to score or encode. Each chunk is a Celery task.
"""

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping

from celery.worker import state
from prometheus_client import REGISTRY
from redis import RedisError

from osrerank._platform import freeze_objects
from osrerank.errors import ConfigError, InferenceError, OsrerankError, PayloadError
from osrerank.metrics import QUEUE_WAIT_SECONDS, WORKER_CHUNKS, WORKER_PAIRS, WORKER_SECONDS, serve_metrics
from osrerank.scoring.card import POINTWISE, Kind
from osrerank.scoring.encoder_scorer import EncoderScorer
from osrerank.scoring.local import LocalModel
from osrerank.scoring.registry import as_scorer, load
from osrerank.scoring.remote.broker import connect
from osrerank.scoring.remote.messages import SCORE, ChunkRequest, Heartbeat, Reply
from osrerank.scoring.remote.signing import UNSIGNED_RISK, Signer, count_refusal
from osrerank.scoring.remote.worker_registry import BEAT_S, DEAD_AFTER_S, WorkerRegistry, queue_name
from osrerank.settings import Settings
from osrerank.types import NEVER, Deadline, Scorer, Scores, is_encoder
from osrerank_workers.broker_health import BrokerHealth
from osrerank_workers.probes import Status
from osrerank_workers.queue_metrics import QueueCollector
from osrerank_workers.replays import ReplayGuard
from osrerank_workers.traced import chunk_span, set_outcome

logger = logging.getLogger(__name__)

CHECK_EVERY_S = 10.0
"""Time between two checks of the model, in seconds."""
HANGS_AFTER_S = 60.0
"""Time since the last successful check after which the model counts as hanging, in seconds."""
REPLY_TTL_S = 60
"""Time after which an unread reply is deleted, in seconds."""
REPLY_RETRY_S = 5.0
"""Time for which a worker tries to send a reply if Redis does not respond, in seconds."""
NEWEST_WEIGHT = 0.2
"""Weight of the newest chunk in the moving average of seconds per chunk, from 0 to 1."""
BATCHING_TASKS = 16
"""Number of chunks that are scored at a time if the model merges them into batches: enough to fill the batches."""
SINGLE_TASKS = 4
"""Number of chunks that are scored at a time with other models: enough that the next chunk is always ready."""

CHECK_TUPLES: Mapping[Kind, tuple[int, ...]] = {**dict.fromkeys(POINTWISE, (0,)), "duo": (0, 1)}
"""The tuple of document indices that a check of the model scores, by the kind of model."""


class WorkerService:
    """Scores or encodes chunks in Celery's threads, which share one scorer.

    Args:
        settings: the settings of the model, its backend, the cache and the broker.
        scorer: a scorer to use instead of the settings' model.

    Attributes:
        worker: the worker's id, such as "web-1:4711:9f3c21ab".
        registry: the registry of workers, which receives the heartbeats.
        broker: the health of the consumer's connection to the broker, which the consumer updates.
        queue: the name of the queue that the worker's chunks come from.
        tasks: the number of chunks to score at a time.
    """

    def __init__(self, settings: Settings, scorer: Scorer | None = None) -> None:
        self.settings = settings
        self.worker = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._scorer = scorer
        self._uncached_scorer = scorer  # for the checks of the model, which must not read stored scores
        self._redis = connect(settings.broker())
        self._signer = Signer.from_settings(settings)
        self.registry = WorkerRegistry(self._redis, settings.model, self._signer)
        self._replay_guard = ReplayGuard(self.registry.now_s)
        self._collector: QueueCollector | None = None
        self.broker = BrokerHealth("the consumer")
        self._heartbeat_broker = BrokerHealth("the heartbeat")
        self._heartbeat_sent_at_s = 0.0
        self._unfinished_chunks: set[str] = set()
        self._lock = threading.Lock()
        self._is_accepting = True
        self._is_closed = threading.Event()
        self._threads: list[threading.Thread] = []
        self._seconds_per_chunk = 0.0
        self._checked_at_s = 0.0  # time of the last successful check of the model, or 0 before the first one
        self._check_tuple: tuple[int, ...] = CHECK_TUPLES["cross-encoder"]
        self.queue = ""
        self.tasks = settings.worker_tasks or SINGLE_TASKS

    @property
    def scorer(self) -> Scorer:
        """The loaded scorer.

        Raises:
            InferenceError: the model is not loaded yet.
        """
        if self._scorer is None:
            raise InferenceError("the worker has not loaded its model yet")
        return self._scorer

    def load(self) -> None:
        """Load the model, check it, and start a thread that checks it every `CHECK_EVERY_S` seconds.

        Raises:
            OsrerankError: the model cannot be loaded, or its check fails.
        """
        if self._scorer is None:
            self._load_model()
        self.queue = queue_name(self.settings.model, self.scorer.identity)
        self.check_model()
        freeze_objects()
        self._start_thread(self._check_repeatedly)
        logger.info("%s is loaded: %s", self.scorer.model, self.scorer.identity)

    def _load_model(self) -> None:
        """Load the settings' model, with the score cache if one is configured and the model is not an encoder."""
        from osrerank.scoring.cache.scorer import add_cache  # noqa: PLC0415 - only when a worker starts

        settings = self.settings
        model = load(settings, in_worker=True)
        self._scorer = self._uncached_scorer = as_scorer(model, settings)
        if settings.redis_url is not None and settings.cache_mb > 0 and not is_encoder(model):
            self._scorer = add_cache(self._uncached_scorer, settings)
        merges_chunks = True  # a model that is no `LocalModel` is on a rerank server, which merges chunks itself
        if isinstance(model, LocalModel):
            merges_chunks = model.merges_calls
            self._check_tuple = CHECK_TUPLES[model.card.kind]
        self.tasks = settings.worker_tasks or (BATCHING_TASKS if merges_chunks else SINGLE_TASKS)

    def start(self) -> None:
        """Serve the metrics and send heartbeats. The heartbeats make clients send chunks to this worker."""
        if self.settings.metrics_port:
            self._collector = QueueCollector(self._redis, self.registry, self._signer, self.queue)
            REGISTRY.register(self._collector)
        try:
            serve_metrics(self.settings.metrics_port)
        except OSError as error:
            reason = (
                f"port {self.settings.metrics_port} cannot be used for metrics ({error.strerror}); set "
                "metrics_port to another port"
            )
            raise ConfigError(reason, setting="metrics_port") from error
        if not self._signer.has_key:
            logger.warning("[unsigned] %s", UNSIGNED_RISK)
        self._start_thread(self._send_heartbeats)
        logger.info("worker %s accepts chunks of %s from %s", self.worker, self.settings.model, self.queue)

    def stop_accepting(self) -> None:
        """Accept no more chunks, and finish the accepted ones."""
        self._is_accepting = False

    def close(self) -> None:
        """Leave the registry and close the model. Call this when all chunks are finished."""
        logger.info("worker %s stops: all chunks that it accepted are finished", self.worker)
        self._is_closed.set()
        for thread in self._threads:
            thread.join(BEAT_S * 4)
        try:
            self.registry.remove(self.worker)
        except RedisError as error:
            logger.warning("[broker-away] the worker could not leave the registry: %s", type(error).__name__)
        if self._collector is not None:
            REGISTRY.unregister(self._collector)
        if self._scorer is not None:
            self._scorer.close()
        self._redis.close()

    def register_chunk(self, chunk: str) -> None:
        """Add a chunk to the unfinished ones. Heartbeats list these, so that their clients do not send them again."""
        with self._lock:
            self._unfinished_chunks.add(chunk)

    def handle(
        self, chunk: str, message: object, *, task: str = SCORE, headers: Mapping[str, object] | None = None
    ) -> None:
        """Score or encode a chunk and reply. Drop a chunk whose deadline has passed.

        Args:
            chunk: the id of the chunk, which is also the id of its task.
            message: the signed request.
            task: the name of the task.
            headers: the task's headers. If the message is valid, they continue the client's trace.
        """
        self.register_chunk(chunk)
        began_s = time.monotonic()
        try:
            request = self._open_request(chunk, message, task)
            with chunk_span(self.queue, request, headers, records_queries=self.settings.trace_queries) as span:
                outcome = self._compute_and_reply(request, began_s)
                set_outcome(span, outcome)
        except PayloadError as error:
            outcome = "refused"
            count_refusal("request", error)
        finally:
            with self._lock:
                self._unfinished_chunks.discard(chunk)
        WORKER_CHUNKS.labels(outcome).inc()

    def check_model(self) -> None:
        """Check that the model works, by scoring a test input without the cache.

        Raises:
            OsrerankError: the model does not work.
        """
        scorer = self._uncached_scorer or self.scorer
        if isinstance(scorer, EncoderScorer):
            scorer.encoder.encode(["is this worker ready"], "document")
        else:
            scores = scorer.score("is this worker ready", ["it is", "it is not"], [self._check_tuple])
            if scores.failures:
                raise InferenceError(next(iter(scores.failures.values())), model=self.scorer.model)
        self._checked_at_s = time.monotonic()

    def status(self) -> Status:
        """Return the worker's state for probes, without a request to the broker or a computation."""
        now_s = time.monotonic()
        is_hanging = self._checked_at_s > 0 and now_s - self._checked_at_s >= HANGS_AFTER_S
        if not self._checked_at_s:
            reason = "the model is being loaded"
        elif is_hanging:
            reason = f"the model has scored nothing for {HANGS_AFTER_S:g} s"
        elif not self._is_accepting:
            reason = "the worker is stopping"
        else:
            reason = self.broker.error or self._heartbeat_broker.error
            if not reason and now_s - self._heartbeat_sent_at_s > DEAD_AFTER_S:
                reason = "the broker does not respond"
        return Status(live=not is_hanging, ready=not reason, reason=reason, held=len(self._unfinished_chunks))

    def heartbeat(self) -> Heartbeat:
        """Return the worker's state for clients.

        Raises:
            RedisError: the broker's time is not known yet, and the broker does not respond.
        """
        with self._lock:
            unfinished = tuple(self._unfinished_chunks)
        return Heartbeat(
            worker=self.worker,
            host=socket.gethostname(),
            queue=self.queue,
            model=self.scorer.model,
            identity=self.scorer.identity,
            advice=self.scorer.advice,
            taking=self._is_accepting and not self.broker.error,
            held=unfinished,
            seconds_per_chunk=self._seconds_per_chunk,
            tasks=self.tasks,
            probed_s=time.monotonic() - self._checked_at_s,
            sent_s=self.registry.now_s(),
        )

    def _open_request(self, chunk: str, message: object, task: str) -> ChunkRequest:
        """Verify and decode the request in a task's message.

        Raises:
            PayloadError: the request is missing, belongs to another task, is not trusted, or is a replay.
        """
        request = ChunkRequest.decode(self._signer.verify("request", message))
        if request.chunk != chunk or request.task != task:
            raise PayloadError(
                "the chunk or task in a request is not that of the Celery task which carried the request",
                reason="misplaced",
            )
        self._replay_guard.check(request)
        return request

    def _compute_and_reply(self, request: ChunkRequest, began_s: float) -> str:
        """Compute a chunk, reply, and return the outcome for the metrics: scored, failed, dropped or unanswered."""
        QUEUE_WAIT_SECONDS.observe(max(0.0, self.registry.clock.to_broker(began_s) - request.sent_s))
        deadline = NEVER
        if request.deadline_s is not None:
            deadline = Deadline(self.registry.clock.to_local(request.deadline_s))
        if deadline.passed:
            return "dropped"
        scores, vectors, error = self._compute(request, deadline)
        took_s = time.monotonic() - began_s
        reply = Reply(request.chunk, self.worker, self.scorer.identity, scores, error, vectors)
        if not self._send_reply(request.reply_queue, reply, deadline):
            return "unanswered"
        if error:
            return "failed"
        self._record_time(len(request.documents) if scores is None else scores.inferences, took_s)
        return "scored"

    def _compute(
        self, request: ChunkRequest, deadline: Deadline
    ) -> tuple[Scores | None, list[bytes | str] | None, str]:
        """Return the chunk's scores, its vector records and an error message. Only one of them is set."""
        if request.identity != self.scorer.identity:
            return None, None, "the worker's model differs from the client's; use the same model and version for both"
        try:
            if request.vector_bits:
                return None, self._encode(request, deadline), ""
            return self.scorer.score(request.query, request.documents, request.tuples, deadline=deadline), None, ""
        except OsrerankError as error:  # its message is a sentence
            logger.warning("[chunk-failed] scoring a chunk failed: %s", type(error).__name__)
            return None, None, str(error)
        except Exception as error:  # noqa: BLE001 - the client needs a reply after any error
            logger.warning("[chunk-failed] scoring a chunk failed: %s", type(error).__name__)
            return None, None, f"{type(error).__name__}: {error}"

    def _encode(self, request: ChunkRequest, deadline: Deadline) -> list[bytes | str]:
        """Return each document's vector record or error, or empty bytes if the deadline passed before it was encoded.

        Raises:
            InferenceError: the model is not an encoder, or the client requests vectors of another precision.
        """
        scorer = self.scorer
        if not isinstance(scorer, EncoderScorer) or scorer.vectors.records.bits != request.vector_bits:
            raise InferenceError(
                f"this worker does not compute vectors of {request.vector_bits} bits: set the same model and "
                "OSRERANK_VECTORS_PROFILE for client and worker"
            )
        contents: list[bytes | str] = []
        for document in scorer.vectors.find(request.documents, deadline).documents:
            if document.records:  # one for each passage; here, the document is the only passage
                contents.append(document.records[0].body())
            else:
                contents.append(document.failures.get(0, b""))
        return contents

    def _send_reply(self, reply_queue: str, reply: Reply, deadline: Deadline) -> bool:
        """Put a reply into the client's queue, within `REPLY_RETRY_S` seconds. Return whether it was sent."""
        pipeline = self._redis.pipeline(transaction=False)
        message = self._signer.sign("reply", reply.encode())
        give_up_at_s = min(time.monotonic() + REPLY_RETRY_S, deadline.at_s or float("inf"))
        while True:
            pipeline.rpush(reply_queue, message)  # in each attempt, because a failed one also empties the pipeline
            pipeline.expire(reply_queue, REPLY_TTL_S)
            try:
                pipeline.execute()
            except RedisError as error:
                if time.monotonic() >= give_up_at_s:
                    logger.warning("[broker-away] a reply could not be sent: %s", type(error).__name__)
                    return False
                time.sleep(0.1)
            else:
                return True

    def _record_time(self, n_pairs: int, took_s: float) -> None:
        """Update the metrics, and the average time per ended chunk. If two run at once, each counts half of its time.

        Args:
            n_pairs: the number of pairs that were scored, or of documents that were encoded.
            took_s: the time from the chunk's start to its end, in seconds.
        """
        WORKER_PAIRS.inc(n_pairs)
        WORKER_SECONDS.observe(took_s)
        with self._lock:
            newest_s = took_s / max(1, min(len(self._unfinished_chunks), self.tasks))
            average_s = self._seconds_per_chunk or newest_s
            self._seconds_per_chunk = (1 - NEWEST_WEIGHT) * average_s + NEWEST_WEIGHT * newest_s

    def _start_thread(self, run: Callable[[], None]) -> None:
        name = f"osrerank{run.__name__}"  # such as osrerank_send_heartbeats
        thread = threading.Thread(target=self._run_or_stop, args=(run,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _run_or_stop(self, run: Callable[[], None]) -> None:
        """Run a background thread. On an unexpected error, log it and stop the worker."""
        try:
            run()
        except Exception as error:  # noqa: BLE001 - no error should end the thread unnoticed
            if not self._is_closed.is_set():
                logger.critical("[model-broken] the worker cannot score or send heartbeats, and stops: %s", error)
                self.stop_accepting()
                state.should_stop = 1  # Celery stops with this exit code

    def _send_heartbeats(self) -> None:
        while not self._is_closed.is_set():
            pause_s = BEAT_S
            try:
                self.registry.renew(self.heartbeat())
            except RedisError as error:
                pause_s = self._heartbeat_broker.record_failure(error)
            else:
                self._heartbeat_broker.record_success()
                self._heartbeat_sent_at_s = time.monotonic()
            self._is_closed.wait(pause_s)

    def _check_repeatedly(self) -> None:
        """Check the model every `CHECK_EVERY_S` seconds. A failure stops the worker, so that no further chunk fails."""
        while not self._is_closed.wait(CHECK_EVERY_S):
            self.check_model()
