"""Names of 0.2 that are gone, each with what to do instead; the changelog has the same table."""

EXPORT = "export the checkpoint again without it: osrerank export SOURCE OUTPUT"

HYBRID = "use a hybrid or knn query of your own as the first pass"

REMOVED: dict[str, str] = {
    "biases": EXPORT,
    "cross-bias": "export the bi-encoder that it was made of, with osrerank export SOURCE OUTPUT",
    "joining": "export the bi-encoder that it was made of, with osrerank export SOURCE OUTPUT",
    "osrerank adapt": "osrerank export MODEL OUTPUT reads a bi-encoder, with its prefixes and pooling",
    "osrerank advise --budget-s": "every judged query is searched: name a file of fewer queries",
    "osrerank advise --compare": "run osrerank --model NAME advise for each model",
    "osrerank advise --p95-ms": "choose a lower depth by the table of the --html report",
    "osrerank advise --pool": "save judgments by click with osrerank serve --ui --save-judgments",
    "osrerank advise --sample": "every judged query is searched: name a file of fewer queries",
    "osrerank advise --searches-per-s": "ask osrerank plan how many machines a load needs",
    "osrerank advise --seed": "every judged query is searched, so that none are drawn",
    "osrerank distill --pool-factor": "make a smaller student, with --layers or --student",
    "osrerank evaluate --union": "compare the recall of each run: `-m R@100`",
    "osrerank export --activations": "leave it out: int8 graphs compute the scale of each input",
    "osrerank export --calibrate": "give --candidates CANDIDATES --qrels QRELS",
    "osrerank export --document-bias": EXPORT,
    "osrerank export --layout": "osrerank export reads a bi-encoder and a cross-encoder as they are: leave it out",
    "osrerank export --other-bias": EXPORT,
    "osrerank export --pool-factor": EXPORT,
    "osrerank export --query-bias": EXPORT,
    "osrerank index --vector-field": "let your application or an ingest pipeline fill a vector field of your own",
    "osrerank index --vectors": "let your application or an ingest pipeline fill a vector field of your own",
    "osrerank judgments": "make judgments from clicks with OpenSearch's Search Relevance plugin over the UBI events",
    "osrerank plan --budget-s": "leave it out: measuring ends by itself",
    "osrerank plan --cache-hit-rate": "give --searches-per-s without the searches whose scores are cached",
    "osrerank plan --candidates": "name an index with --index to measure with real texts",
    "osrerank plan --clients": "leave it out: all searches wait in one queue",
    "osrerank plan --document-words": "name an index with --index to measure with real texts",
    "osrerank plan --gpu-pairs-per-s": "give the GPU's rate as --pairs-per-s",
    "osrerank plan --overhead-ms": "add it to --first-pass-ms",
    "osrerank plan --query-words": "leave it out: the query is a usual one of six words",
    "osrerank plan --rates": "give the rate as --pairs-per-s, and --variation",
    "osrerank plan --save-rates": "print the rates with --json",
    "osrerank plan --seed": "leave it out: a formula replaced the simulation",
    "osrerank plan --states-share": "build the states first, with osrerank states build",
    "osrerank run --source": f"{HYBRID}, by client.search",
    "osrerank run --vectors": f"{HYBRID}, by client.search",
    "osrerank search --vectors": f"{HYBRID}, by client.search",
    "osrerank states build --kind": "only the model that scores candidates has states: leave it out",
    "osrerank tradeoff --recall": "measure the recall of a run: `osrerank evaluate -m R@100`",
    "osrerank train mono --on-states": "leave it out to train the whole model; joined layers are gone",
    "osrerank train mono --states-profile": "leave it out: a training reads whole texts",
    "osrerank vectors": f"{HYBRID}; documents' states are built by `osrerank states build`",
    "osrerank/duo": "name a duo model of your own (osrerank train duo) or duoBERT, exported with --kind duo",
    "prior_share": EXPORT,
    "rerank.candidates": HYBRID,
    "rerank.duo_skip_margin": "lower duo_depth, or set duo_budget_ms, where pairs take too long",
    "rerank.via": 'leave rerank out and name the installed pipeline in the search: search_pipeline="osrerank"',
}
"""What a user may still name -> one sentence. Options stand as ``rerank.NAME``, commands as ``osrerank NAME``, options
of a command as ``osrerank NAME --OPTION``, variables and fields of a model card by their names."""


def instead_of(name: str) -> str:
    """Return what to do instead of a name that is gone, as one sentence; "" where it never was one."""
    return REMOVED.get(name, "")
