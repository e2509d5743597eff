"""Options, commands and variables that earlier versions accepted, and what error messages suggest instead."""

VECTORS_SUFFIXES = ("", "_FOLDER", "_KEY", "_MB", "_PROFILE", "_TTL_S")
"""The endings of the settings for document vectors, such as ``OSRERANK_VECTORS`` and ``OSRERANK_VECTORS_MB``."""
SEARCH_COMMANDS = ("rerank", "run", "search")
"""The commands with search options."""

# Advice that several removed names share:
SIGNING_KEY = "set OSRERANK_SIGNING_KEY, which signs both messages and scores"
VECTORS_INDEX = "set OSRERANK_VECTORS=index for the file and side indices, or OSRERANK_VECTORS=file for no side index"
VECTORS_REDIS = "set OSRERANK_VECTORS=redis, and the Redis as OSRERANK_REDIS_URL"
DEADLINE = "set deadline_ms, which bounds all stages"
FEEDBACK = "leave it out: it improved no model enough (docs/research/feedback.md)"
HYBRID = "use a hybrid or knn query of your own as the first pass"
NEW_EXPORT = "export the checkpoint again without it: osrerank export SOURCE OUTPUT"
TOP_DOCUMENTS = "list the top documents of each run in Python, as docs/reproduce.md does for Table 3"
WORKER_COUNT = "calculate how many workers a load needs with the formula in docs/workers.md"

REMOVED: dict[str, str] = {
    **{f"OSRERANK_STATES{suffix}": f"set OSRERANK_VECTORS{suffix}" for suffix in VECTORS_SUFFIXES},
    "OSRERANK_CACHE_KEY": SIGNING_KEY,
    "OSRERANK_CATALOGUE": "pass a mirror's list with osrerank download --catalogue FILE",
    "OSRERANK_MODELS_MAX": "leave it out: at most 3 models stay loaded",
    "OSRERANK_RERANK_BATCH": "write batch = NUMBER in [http] of osrerank.toml",
    "OSRERANK_RERANK_DIALECT": 'write dialect = "NAME" in [http] of osrerank.toml',
    "OSRERANK_RERANK_SCORES": 'write scores = "probability" or "logit" in [http] of osrerank.toml',
    "OSRERANK_RERANK_URL": 'write url = "http://HOST:PORT" in [http] of osrerank.toml',
    "OSRERANK_STATES_INDEX": VECTORS_INDEX,
    "OSRERANK_STATES_REDIS_URL": VECTORS_REDIS,
    "OSRERANK_TORCH_COMPILE": "leave it out: the torch backend no longer compiles the network",
    "OSRERANK_TRACING": "set OTEL_SDK_DISABLED=true for off, or OSRERANK_TRACE_QUERIES=true for queries",
    "OSRERANK_VECTORS_INDEX": VECTORS_INDEX,
    "OSRERANK_VECTORS_REDIS_URL": VECTORS_REDIS,
    "OSRERANK_WORKERS_KEY": SIGNING_KEY,
    "feedback": NEW_EXPORT,
    "osrerank adapt": "use osrerank export MODEL OUTPUT, which reads a bi-encoder with its prefixes and pooling",
    "osrerank advise --budget-s": "every judged query is searched: pass a file with fewer queries",
    "osrerank advise --compare": "set the models with osrerank advise --models NAME",
    "osrerank advise --p95-ms": "choose a lower depth from the table in the --html report",
    "osrerank advise --pool": "judge hits by clicking, with osrerank serve --ui --save-judgments",
    "osrerank advise --sample": "every judged query is searched: pass a file with fewer queries",
    "osrerank advise --searches-per-s": WORKER_COUNT,
    "osrerank advise --seed": "leave it out: every judged query is searched, without a random sample",
    "osrerank bench": "use osrerank advise for latency, or python -m tools.bench in a checkout to compare libraries",
    "osrerank distill --pool-factor": "make a smaller student, with --layers or --student",
    "osrerank doctor --upgrade": "leave it out: an error about a removed name states its replacement",
    "osrerank evaluate --queries": TOP_DOCUMENTS,
    "osrerank evaluate --texts": TOP_DOCUMENTS,
    "osrerank evaluate --union": "compare the recall of each run: osrerank evaluate -m R@100",
    "osrerank export --activations": "leave it out: int8 graphs compute each activation tensor's scale as they run",
    "osrerank export --calibrate": "give --candidates CANDIDATES --qrels QRELS",
    "osrerank export --document-bias": NEW_EXPORT,
    "osrerank export --kind mono": "leave it out: osrerank export reads bi-encoders and cross-encoders as they are",
    "osrerank export --layout": "leave it out: osrerank export reads bi-encoders and cross-encoders as they are",
    "osrerank export --other-bias": NEW_EXPORT,
    "osrerank export --padded": "leave it out; for a graph with padded batches as input, use Optimum",
    "osrerank export --pool-factor": NEW_EXPORT,
    "osrerank export --query-bias": NEW_EXPORT,
    "osrerank index --vector-field": "let your application or an ingest pipeline fill a vector field of your own",
    "osrerank judgments": "make judgments from UBI's click events with OpenSearch's Search Relevance plugin",
    **{f"osrerank {command} --feedback": FEEDBACK for command in SEARCH_COMMANDS},
    **{f"osrerank {command} --{stage}-budget-ms": DEADLINE for command in SEARCH_COMMANDS for stage in ("mono", "duo")},
    "osrerank pipeline install --default-for": (
        'name the pipeline in each search, or send PUT INDEX/_settings {"index.search.default_pipeline": "osrerank"}'
    ),
    "osrerank index --states": "use --vectors",
    "osrerank plan": WORKER_COUNT,
    "osrerank run --source": f"{HYBRID}, with client.search",
    "osrerank run --vectors": f"{HYBRID}, with client.search",
    "osrerank search --vectors": f"{HYBRID}, with client.search",
    "osrerank tradeoff --recall": "measure the recall of each run: osrerank evaluate -m R@100",
    **{f"osrerank {command} --rm3-options": "write --rm3 documents=10,terms=10" for command in ("run", "search")},
    "osrerank states": "document states are document vectors now: use osrerank vectors",
    "osrerank train mono --on-states": "leave it out to train the whole model; joined layers are gone",
    "osrerank train mono --states-profile": "leave it out: training reads whole texts",
    "osrerank tune --birch-dataset": "score the sentences again with osrerank run --sentences, and name its side file",
    "osrerank vectors coverage": "use osrerank vectors status --index NAME, with --at-least",
    "osrerank vectors build --since": "use osrerank vectors build --follow, which needs no date field",
    "osrerank vectors build --watch": "use osrerank vectors build --follow",
    "osrerank/mono": "use osrerank/e5-small, the same weights",
    "osrerank/mono-small": "use osrerank/minilm-l6, the same weights",
    "osrerank/duo": "name a duo model of your own (osrerank train duo) or duoBERT, exported with --kind duo",
    "recipe.compiled": "leave it out: training no longer compiles the network",
    "recipe.layout": 'write kind = "cross-encoder" for the layout standard, and leave bi-encoder out',
    "rerank.blend.weighted": 'use "linear", whose blend_weight is added to the model\'s logit',
    "rerank.cache": "set OSRERANK_CACHE_MB=0 and OSRERANK_CACHE_LOCAL_MB=0 for a client that caches no scores",
    "rerank.candidates": HYBRID,
    "rerank.cutoff.cliff": 'use min_score, or cutoff={"precision": 0.9} after osrerank calibrate',
    "rerank.duo_skip_margin": "lower duo_depth where pairs take too long",
    "rerank.duo_budget_ms": DEADLINE,
    "rerank.feedback": FEEDBACK,
    "rerank.mono_budget_ms": DEADLINE,
    "rerank.shadow": 'write traffic={"shadow": true}',
    "rerank.share": 'write traffic={"share": 0.1}',
    "rerank.share_key": 'write traffic={"key": SESSION}',
    "secrets.cacheKey": "name its Secret as secrets.signingKey, which signs both messages and scores",
    "secrets.vectorsRedisUrl": "leave it out: the server keeps vectors in the Redis of secrets.redisUrl",
    "secrets.workersKey": "name its Secret as secrets.signingKey, which signs both messages and scores",
    "rerank.via": 'leave rerank out and name the installed pipeline in the search: search_pipeline="osrerank"',
}
"""What to do instead of using a removed name.

The keys are ``rerank.NAME`` for a search option, ``osrerank NAME`` for a command, ``osrerank NAME --OPTION`` for an
option of a command, ``recipe.NAME`` for a field of a recipe, and ``secrets.NAME`` for a value of the Helm chart, which
``docker/chart/templates/_names.tpl`` also lists. Variables, models and fields of a model card have no prefix.
"""


def find_replacement(name: str) -> str:
    """Return what to do instead of using a removed name. Return "" if the name was not removed."""
    return REMOVED.get(name, "")
