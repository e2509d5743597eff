"""Names of 0.2 that are gone, each with what to do instead; the changelog has the same table."""

REMOVED: dict[str, str] = {
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
}
"""What a user may still name -> one sentence. Options stand as ``rerank.NAME``, commands as ``osrerank NAME``, options
of a command as ``osrerank NAME --OPTION``, variables and fields of a model card by their names."""


def instead_of(name: str) -> str:
    """Return what to do instead of a name that is gone, as one sentence; "" where it never was one."""
    return REMOVED.get(name, "")
