"""Check each part of a deployment, and suggest how to fix it, for the command ``osrerank doctor``."""

import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from osrerank._platform import usable_cores
from osrerank._redis import open_redis
from osrerank.client import Client, connect, embedded_folder, to_engine_error
from osrerank.errors import ConfigError, MissingDependencyError, ScoringError
from osrerank.options.defaults import Defaults
from osrerank.options.rerank import VECTORS_MONO
from osrerank.retrieval.mapping import TEXT_KINDS, list_field_names, read_leaves_by_index
from osrerank.retrieval.search_pipelines import DEFAULT_PIPELINE_SETTING
from osrerank.scoring.card import ENCODERS, POINTWISE, ModelCard
from osrerank.scoring.names import HTTP, WORKERS
from osrerank.scoring.registry import as_scorer, is_local, load, load_local
from osrerank.settings import DEFAULT_MODEL, Settings
from osrerank.settings_file import HttpSettings
from osrerank.types import NEVER, Deadline, Scorer
from osrerank.types.engine_errors import EngineError
from osrerank.types.scores import single_documents

if TYPE_CHECKING:
    from osrerank.scoring.backends.base import Backend

Status = Literal["ok", "failed", "absent"]
LIBRARIES = (
    "osrerank",
    "opensearch-py",
    "onnxruntime",
    "tokenizers",
    "numpy",
    "torch",
    "transformers",
    "celery",
    "redis",
)
"""The libraries whose versions are reported."""
CPUINFO = Path("/proc/cpuinfo")
INT8_CPU_FEATURES = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}
"""Processor features that make int8 models fast. asimddp and i8mm are features of ARM processors."""
CPU_FEATURES = ("avx2", "avx512f", "avx512_bf16", *sorted(INT8_CPU_FEATURES))
"""Processor features that determine the speed of models."""
RERANK_SERVER_TIMEOUT_MS = 15_000.0
"""The timeout for scoring a text on a rerank server, in milliseconds."""
WRONG_ADDRESS_FIX = "correct the address: no search engine responds there"
NO_SERVER_FIX = "start the server, or set its address with --url or OSRERANK_URL"
NO_INDEX_FIX = "create the index with osrerank index, or pass another --index"
STATUS_FIXES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "correct the user and the password: --url or OSRERANK_URL, https://USER:PASSWORD@HOST:PORT",
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: "set the user and the password of the proxy",
    HTTPStatus.METHOD_NOT_ALLOWED: WRONG_ADDRESS_FIX,
}
BUSY_STATUSES = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)
ENGINE_TIMEOUT_S = 5
"""The timeout for each response of the search engine, in seconds."""
REDIS_TIMEOUT_S = 2.0
"""The timeout for connecting to Redis, and for its response, in seconds."""
PROBE_KEY = "osrerank:doctor"
"""The key that is written to find out whether a Redis accepts writes."""
QUEUE_KEYS = ("_kombu.binding.osrerank", "unacked", "osrerank:queue")
"""Keys with the prefixes of Celery's queues. They need not exist, but a user who may not read them has no broker."""
SAMPLE_SIZE = 20
"""The number of documents to read from an index, to find out their languages."""
QUERY = "what causes low blood pressure"
DOCUMENT = "Dehydration, bed rest and some drugs lower blood pressure."
"""A query and a document that the model scores, to find out whether it works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of checking one part of the deployment.

    Attributes:
        part: the name of the part.
        status: ``ok``, ``failed`` if the part is configured but does not work, or ``absent`` if it is not configured.
        found: what the check found, in a sentence.
        fix: what to do, or "" if there is nothing to fix.
        facts: what the check found, as values for programs, such as ``{"logit": 4.2, "took_ms": 3.1}``.
    """

    part: str
    status: Status
    found: str
    fix: str = ""
    facts: Mapping[str, Any] | None = None


def examine(settings: Settings, *, index: str = "") -> Iterator[Finding]:
    """Check all parts, even if one fails, and yield a finding for each.

    Args:
        settings: the settings of the deployment.
        index: the index to check. If it is "", no index is checked.
    """
    yield _check_software()
    yield _check_processor()
    yield from _check_model(settings, index)
    if _needs_vector_model(settings, index):
        yield _check_vector_model(settings)
    yield from _check_engine(settings, index)
    yield from _check_redis_servers(settings)
    yield _check_workers(settings)


def use_index_model(settings: Settings, index: str) -> Settings:
    """Return the settings with the model that the settings file sets for an index, if it sets one.

    Raises:
        ConfigError: the file cannot be used, or ``index`` is a pattern of indices with different models.
    """
    models = Defaults.load(settings).models_of(index)
    if len(models) > 1:
        reason = f"the indices of {index} might use different models: check them one by one"
        raise ConfigError(reason, setting="model", source="settings file")
    model = models.pop()
    return settings if model is None else settings.model_copy(update={"model": model})


def read_cpu_name() -> str:
    """Return the processor's name as the system reports it."""
    return _read_cpu_field("model name") or platform.processor() or platform.machine()


def read_cpu_features() -> list[str]:
    """Return which of `CPU_FEATURES` the processor has. The list is empty if the system does not report them."""
    flags = (_read_cpu_field("flags") or _read_cpu_field("Features")).split()  # on x86, or else on ARM
    return [name for name in CPU_FEATURES if name in flags]


def find_versions(libraries: Sequence[str]) -> dict[str, str]:
    """Return the versions of those libraries that are installed, such as ``{"numpy": "2.3.1"}``."""
    versions = {}
    for name in libraries:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _read_cpu_field(name: str) -> str:
    """Return a field's value in ``/proc/cpuinfo``, whose lines are like ``flags : sse avx2``. Return "" if missing."""
    if not CPUINFO.exists():
        return ""
    for line in CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return ""


def _check_software() -> Finding:
    versions = find_versions(LIBRARIES)
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    return Finding("software", "ok", f"Python {platform.python_version()}; {names}", facts=versions)


def _check_processor() -> Finding:
    features, cores = read_cpu_features(), usable_cores()
    int8_features = INT8_CPU_FEATURES & set(features)
    if int8_features:
        speed = f"int8 is fast here ({', '.join(sorted(int8_features))})"
    else:
        speed = "it has no instructions for int8 products"
    sentence = f"{read_cpu_name()}, {cores} usable cores; {speed}"
    return Finding("processor", "ok", sentence, facts={"features": features, "cores": cores})


def _check_model(settings: Settings, index: str) -> Iterator[Finding]:
    if settings.backend == HTTP:
        yield _check_rerank_server(settings)
        return
    if not is_local(settings.backend):
        yield Finding("model", "absent", f"this process does not score: the backend is {settings.backend}")
        return
    try:
        model = load_local(settings, POINTWISE)
    except Exception as error:  # noqa: BLE001 - any error is the finding
        yield Finding("model", "failed", _first_line(error), _choose_model_fix(settings, index))
        return
    with closing(model):
        yield _describe_model(settings, model.card, model.backend)
        try:
            yield _score_pair(as_scorer(model))
        except Exception as error:  # noqa: BLE001 - any error is the finding
            yield Finding("scored pair", "failed", _first_line(error), "export or download the model again")


def _choose_model_fix(settings: Settings, index: str) -> str:
    if settings.model == DEFAULT_MODEL:
        return "install osrerank again: this model is part of it"
    with suppress(ConfigError):  # `_check_engine` reports a bad settings file
        if index and settings.model in Defaults.load(settings).models_of(index):
            file = settings.find_settings_file()
            return f"correct the model of {index} in {file}; docs/models.md lists the possible values"
    return "correct --model or OSRERANK_MODEL, or leave it out; docs/models.md lists the possible values"


def choose_engine_fix(error: Exception, not_found_fix: str = WRONG_ADDRESS_FIX) -> str:
    """Return what to do about an error of the search engine or its connection. Return "" if the error says so itself.

    Args:
        error: any exception.
        not_found_fix: what to do if the requested object does not exist (404).
    """
    engine_error = to_engine_error(error)
    status = engine_error.status
    if status is None:
        return "" if isinstance(error, ConfigError) else NO_SERVER_FIX
    if engine_error.kind == "index_closed_exception":  # the error does not name the index
        return f"open the index{_name_index(engine_error)}, or leave it out"
    if engine_error.kind == "cluster_block_exception" and status != HTTPStatus.SERVICE_UNAVAILABLE:
        is_full = status == HTTPStatus.TOO_MANY_REQUESTS
        return "free disk space where the engine stores its data" if is_full else ""  # the error describes the block
    if status == HTTPStatus.FORBIDDEN:
        return "grant this user the missing permission; docs/operations.md has the roles"
    fixes: dict[int, str] = {
        **STATUS_FIXES,
        HTTPStatus.NOT_FOUND: not_found_fix,
        **dict.fromkeys(BUSY_STATUSES, "wait until the server has started or is less busy, and read its log"),
    }
    other_fix = "read the logs of the server and of any proxy in front of it" if status >= 500 else ""
    return fixes.get(status, other_fix)


def _name_index(error: EngineError) -> str:
    """Return the name of the index that an error is about, with a space before it, or "" if the error has none."""
    with suppress(AttributeError, LookupError, TypeError):
        return f" {error.cause.info['error']['index']}"
    return ""


def _needs_vector_model(settings: Settings, index: str) -> bool:
    with suppress(ConfigError):  # `_check_engine` reports a bad settings file
        return Defaults.load(settings).options_for(index or None).pipeline in VECTORS_MONO
    return False


def _check_vector_model(settings: Settings) -> Finding:
    try:
        with closing(as_scorer(load_local(settings, ENCODERS, model=settings.vector_model))) as scorer:
            scorer.score(QUERY, [DOCUMENT], single_documents(1))
    except Exception as error:  # noqa: BLE001 - any error is the finding
        fix = "correct --vector-model or OSRERANK_VECTOR_MODEL, or leave it out"
        return Finding("vector model", "failed", _first_line(error), fix)
    sentence = f"{settings.vector_model} encodes documents for the pipeline vectors-mono"
    return Finding("vector model", "ok", sentence, facts={"model": settings.vector_model})


def _check_rerank_server(settings: Settings) -> Finding:
    fix = "correct [http] of osrerank.toml, OSRERANK_RERANK_KEY or the model's name, or start the server"
    try:
        url = HttpSettings.load(settings).url
        with closing(as_scorer(load(settings, POINTWISE))) as scorer:
            finding = _score_pair(scorer, Deadline.after_ms(RERANK_SERVER_TIMEOUT_MS))
    except Exception as error:  # noqa: BLE001 - any error is the finding
        return Finding("model", "failed", _first_line(error), fix)
    facts = {"backend": HTTP, "url": url, "model": scorer.model, **(finding.facts or {})}
    sentence = f"{scorer.model} at {url}: {finding.found}"
    return Finding("model", finding.status, sentence, fix if finding.fix else "", facts)


def _describe_model(settings: Settings, card: ModelCard, backend: "Backend") -> Finding:
    """Return the finding of a loaded model: its backend and precision, and why this backend was chosen."""
    name = backend.name
    if settings.backend != "auto":
        reason = f"the settings choose {settings.backend}"
    elif name == "onnx":
        reason = f"the model contains ONNX graphs ({', '.join(card.onnx)})"
    else:
        reason = "the model contains weights but no ONNX graph, and torch is installed"
    threads, precision = backend.threads, backend.precision  # each thread runs the network on its own
    facts = {"model": card.name, "backend": name, "precision": precision, "threads": threads, "why": reason}
    sentence = f"{card.name}: backend {name}, {precision}, {threads} runs at once: {reason}"
    return Finding("model", "ok", sentence, facts=facts)


def _score_pair(scorer: Scorer, deadline: Deadline = NEVER) -> Finding:
    tuples = single_documents(1)
    scorer.score(QUERY, [DOCUMENT], tuples, deadline=deadline)  # the first run takes longer, so it is not timed
    began_s = time.perf_counter()
    scores = scorer.score(QUERY, [DOCUMENT], tuples, deadline=deadline)
    took_ms = 1000 * (time.perf_counter() - began_s)
    if not scores.attempted:  # the deadline passed, and only a rerank server has one
        reason = f"no score within {RERANK_SERVER_TIMEOUT_MS / 1000:g} s"
        return Finding("scored pair", "failed", reason, "wait until the server is ready")
    if scores.failures:
        return Finding("scored pair", "failed", scores.failures[0], "export or download the model again")
    logit = float(scores.values[0])
    sentence = f"logit {logit:.3f} in {took_ms:.1f} ms"
    return Finding("scored pair", "ok", sentence, facts={"logit": logit, "took_ms": took_ms})


def _check_engine(settings: Settings, index: str) -> Iterator[Finding]:
    """Check the search engine and, unless ``index`` is "", the index with its fields, texts and vectors."""
    address = settings.url.get_secret_value()
    try:
        client = connect(address, max_retries=0, timeout=ENGINE_TIMEOUT_S)
    except Exception as error:  # noqa: BLE001 - any error is the finding
        yield Finding("engine", "failed", _first_line(error), choose_engine_fix(error))
        return
    with closing(client):
        try:
            engine_version = client.info()["version"]
        except Exception as error:  # noqa: BLE001 - any error is the finding
            reason = "it does not respond" if to_engine_error(error).status is None else "it refuses the request"
            yield Finding("engine", "failed", f"{reason}: {_first_line(error)}", choose_engine_fix(error))
            return
        distribution = engine_version.get("distribution", "elasticsearch")  # Elasticsearch lacks the key
        number = engine_version["number"]
        folder = embedded_folder(settings)
        location = f"the embedded engine in {folder}" if folder else _list_hosts(client)
        facts = {"distribution": distribution, "version": number, "at": location}
        yield Finding("engine", "ok", f"{location} responds as {distribution} {number}", facts=facts)
        if not index:
            yield Finding("index", "absent", "no index was checked; set one with --index")
        else:
            yield _check_fields(client, index)
            yield from _check_search_pipeline(client, index)
    if index and is_local(settings.backend):
        yield from _check_texts(settings, index)
        yield from _check_vectors(settings, index)


def _list_hosts(client: Client) -> str:
    hosts = client.transport.hosts or []
    return ", ".join(f"{host.get('scheme', 'http')}://{host.get('host')}:{host.get('port', 9200)}" for host in hosts)


def _check_fields(client: Client, index: str) -> Finding:
    try:
        mappings = client.indices.get_mapping(index=index)
    except Exception as error:  # noqa: BLE001 - any error is the finding
        return Finding("index", "failed", f"{index}: {_first_line(error)}", choose_engine_fix(error, NO_INDEX_FIX))
    text_fields = list_field_names(read_leaves_by_index(mappings).values(), TEXT_KINDS)
    search_fields = client.fields_of(index)
    query_fields, model_fields = list(search_fields.query_fields), list(search_fields.model_fields)
    name_warnings = search_fields.check_names(fields_with_text=None)  # no search has found hits with text
    warnings = [*search_fields.warnings, *name_warnings]
    left_out = list(search_fields.left_out)
    facts = {
        "text_fields": text_fields,
        "searched": query_fields,
        "read": model_fields,
        "left_out": left_out,
        "warnings": warnings,
    }
    if warnings or not model_fields:
        names = ", ".join(text_fields) or "none"
        reason = f"{index}: {'; '.join(warnings) or 'it has no field for the model'}; its text fields: {names}"
        return Finding("index", "failed", reason, "set the fields with --fields or in the settings file", facts)
    sentence = f"{index}: text fields {', '.join(text_fields)}; searched: {', '.join(query_fields)}"
    sentence += f"; read: {', '.join(model_fields)}"
    if left_out:
        sentence += f"; left out: {', '.join(left_out)}"
    return Finding("index", "ok", sentence, facts=facts)


def _check_search_pipeline(client: Client, index: str) -> Iterator[Finding]:
    pipeline = client.search_pipeline_of(index)
    if pipeline.blocking_reason:
        reason = f"{index}: searches are not reranked: {pipeline.blocking_reason}"
        fix = f"remove the pipeline from the index's setting {DEFAULT_PIPELINE_SETTING}, or leave the ranking to it"
        yield Finding("search pipeline", "failed", reason, fix)
    elif pipeline.missing_permission:
        reason = f"{index}: this user cannot read the default search pipeline, which might rank the hits itself"
        yield Finding("search pipeline", "failed", reason, f"grant this user {pipeline.missing_permission}")
    elif pipeline.name:
        yield Finding("search pipeline", "ok", f"{index}: searches use the search pipeline {pipeline.name}")


def _check_texts(settings: Settings, index: str) -> Iterator[Finding]:
    """Report whether documents have text in the fields that are read, and whether the model reads their languages."""
    from osrerank.indexing.documents import sample_texts  # noqa: PLC0415 - imports tokenizers
    from osrerank.indexing.languages import Languages  # noqa: PLC0415 - imports tokenizers

    try:
        with closing(connect(settings.url.get_secret_value(), model=settings.model)) as client:
            fields = client.fields_of(index)
            texts = sample_texts(client, index, fields, SAMPLE_SIZE)
            languages = Languages.detect(client, index, texts)
            is_empty_index = not texts and not client.count(index=index)["count"]
    except Exception as error:  # noqa: BLE001 - any error is the finding
        yield Finding("languages", "failed", _first_line(error), choose_engine_fix(error, NO_INDEX_FIX))
        return
    if fields.model_fields and not texts and not is_empty_index:
        reason = f"{index}: the sampled documents have no text in {', '.join(fields.model_fields)}"
        fix = "set other fields with --fields or in the settings file; the model reads texts from _source"
        yield Finding("texts", "failed", reason, fix)
    if languages.counts:
        sentence, *fixes = languages.sentences  # the documents' languages, then what to do about them
        status: Status = "failed" if languages.unsupported else "ok"
        yield Finding("languages", status, f"{index}: {sentence}", "; ".join(fixes), dict(languages.counts))


def _check_vectors(settings: Settings, index: str) -> Iterator[Finding]:
    """Report missing vectors, the cost of building them, and side indices whose index was deleted.

    A side index holds the vectors of another index's documents.
    """
    from osrerank.indexing.estimate import estimate  # noqa: PLC0415 - loads a model
    from osrerank.indexing.side_index import find_orphans  # noqa: PLC0415 - loads a model

    if settings.vectors == "off":
        yield Finding("vectors", "absent", "document vectors are off: each search encodes its candidates")
        return
    try:
        client = connect(
            settings.url.get_secret_value(),
            model=settings.model,
            vector_model=settings.vector_model,
            backend=settings.backend,
            dtype=settings.dtype,
        )
        with closing(client):
            build_estimate, orphaned = estimate(client, index), find_orphans(client)
    except ConfigError as error:
        yield Finding("vectors", "absent", _first_line(error))
    except Exception as error:  # noqa: BLE001 - any error is the finding
        is_model_error = isinstance(error, ScoringError | MissingDependencyError)
        fix = _choose_model_fix(settings, index) if is_model_error else choose_engine_fix(error, NO_INDEX_FIX)
        yield Finding("vectors", "failed", _first_line(error), fix)
    else:
        yield Finding("vectors", "ok", str(build_estimate), facts={**build_estimate.as_json(), "orphans": orphaned})
        if orphaned:
            reason = f"the indices of these side indices were deleted: {', '.join(orphaned)}"
            yield Finding("side indices", "failed", reason, f"osrerank vectors prune --index {index} deletes them")


def _check_redis_servers(settings: Settings) -> Iterator[Finding]:
    cache_url, broker_url = settings.redis_url, None
    if settings.backend == WORKERS:
        broker_url = settings.broker_url or settings.redis_url
    if cache_url is None:
        yield Finding("redis", "absent", "each process caches its own scores; OSRERANK_REDIS_URL shares them")
    else:
        fix = "start it, or correct --redis-url or OSRERANK_REDIS_URL; searches work without it, only slower"
        url = cache_url.get_secret_value()
        yield _check_redis("redis", url, fix, has_queues=cache_url == broker_url, cache_mb=settings.cache_mb)
    if broker_url is not None and broker_url != cache_url:
        fix = "start it, or correct OSRERANK_BROKER_URL"
        yield _check_redis("broker", broker_url.get_secret_value(), fix, has_queues=True, cache_mb=0)


def _check_redis(part: str, url: str, fix: str, *, has_queues: bool, cache_mb: float) -> Finding:
    """Check that a Redis accepts writes, and how it limits its memory.

    Args:
        part: the name of the part in the finding: ``redis`` or ``broker``.
        url: the Redis's URL.
        fix: what to do if the Redis does not respond.
        has_queues: whether it also has the queues of workers. If so, it must not evict keys.
        cache_mb: the maximum memory of the score cache in it, in megabytes.
    """
    from osrerank.scoring.remote.broker import check_redis_mode, explain_redis_error, read_error_code  # noqa: PLC0415 - imports redis

    try:
        with open_redis(url, connect_s=REDIS_TIMEOUT_S, response_s=REDIS_TIMEOUT_S) as client:
            if has_queues:
                check_redis_mode(client)
                client.exists(*QUEUE_KEYS)
            client.set(PROBE_KEY, b"", px=1)  # expires after 1 ms
            memory, server = _read_info(client, "memory"), _read_info(client, "server")
    except Exception as error:  # noqa: BLE001 - any error is the finding
        code, message = read_error_code(error), _first_line(error)
        reason = f"it responds with the error {code}: {message}" if code else f"it does not respond: {error}"
        return Finding(part, "failed", reason, explain_redis_error(error, fix))
    if not memory:
        sentence = "Redis responds and accepts writes; this user cannot read its memory limits (INFO)"
        if has_queues:
            sentence += ": maxmemory-policy must be noeviction"
        return Finding(part, "ok", sentence)
    policy, maxmemory = str(memory.get("maxmemory_policy", "unknown")), int(memory.get("maxmemory", 0))
    facts = {"version": server["redis_version"], "maxmemory_policy": policy, "maxmemory_bytes": maxmemory}
    sentence = f"Redis {server['redis_version']} responds; maxmemory-policy {policy}, maxmemory {maxmemory} bytes"
    if has_queues and policy not in ("noeviction", "unknown"):
        eviction_fix = "set maxmemory-policy to noeviction; the score cache limits its own memory"
        return Finding(part, "failed", f"{sentence}: evicting a queue loses searches", eviction_fix, facts)
    if 0 < maxmemory < cache_mb * 1e6:
        sentence += f"; the score cache can use {cache_mb:g} MB of it: raise maxmemory or lower OSRERANK_CACHE_MB"
    return Finding(part, "ok", sentence, facts=facts)


def _read_info(client: Any, section: str) -> Mapping[str, Any]:
    """Return a section of Redis' ``INFO``. Return {} if this user may not read it, because searches do not need it."""
    from redis.exceptions import NoPermissionError  # noqa: PLC0415 - imports redis

    with suppress(NoPermissionError):
        response: Mapping[str, Any] = client.info(section)
        return response
    return {}


def _check_workers(settings: Settings) -> Finding:
    if settings.backend != WORKERS:
        scorer = "the rerank server" if settings.backend == HTTP else "this process"
        return Finding("workers", "absent", f"{scorer} scores; OSRERANK_BACKEND=workers sends the work to workers")
    try:
        heartbeats = _read_heartbeats(settings)
    except (ModuleNotFoundError, MissingDependencyError) as error:
        fix = "pip install 'osrerank[workers]', and the same version of osrerank everywhere"
        return Finding("workers", "failed", f"this installation has no workers: {error}", fix)
    except Exception as error:  # noqa: BLE001 - any error is the finding
        from osrerank.scoring.remote.broker import explain_redis_error, read_error_code  # noqa: PLC0415 - imports redis

        message = ": ".join(filter(None, (read_error_code(error), _first_line(error))))
        fix = explain_redis_error(error, "start the broker's Redis")
        return Finding("workers", "failed", f"the broker does not respond: {message}", fix)
    if not heartbeats:
        return Finding("workers", "failed", f"no worker of {settings.model} is running", "run osrerank worker")
    names = [str(heartbeat.worker) for heartbeat in heartbeats]
    return Finding("workers", "ok", f"{len(names)} are running: {', '.join(names)}", facts={"workers": names})


def _read_heartbeats(settings: Settings) -> Sequence[Any]:
    from osrerank.scoring.remote.broker import connect as connect_broker  # noqa: PLC0415 - imports redis
    from osrerank.scoring.remote.signing import Signer  # noqa: PLC0415 - imports redis
    from osrerank.scoring.remote.worker_registry import WorkerRegistry  # noqa: PLC0415 - imports redis

    redis = connect_broker(settings.broker())
    try:
        heartbeats: Sequence[Any] = WorkerRegistry(redis, settings.model, Signer.from_settings(settings)).heartbeats()
    finally:
        redis.close()
    return heartbeats


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
