"""Names of 0.2 that are gone, each with what to do instead; the changelog has the same table."""

HYBRID = "use a hybrid or knn query of your own as the first pass"

REMOVED: dict[str, str] = {
    "rerank.candidates": HYBRID,
    "osrerank search --vectors": f"{HYBRID}, by client.search",
    "osrerank run --vectors": f"{HYBRID}, by client.search",
    "osrerank run --source": f"{HYBRID}, by client.search",
    "osrerank vectors": f"{HYBRID}; documents' states are built by `osrerank states build`",
    "osrerank index --vectors": "let your application or an ingest pipeline fill a vector field of your own",
    "osrerank index --vector-field": "let your application or an ingest pipeline fill a vector field of your own",
    "osrerank evaluate --union": "compare the recall of each run: `-m R@100`",
    "osrerank tradeoff --recall": "measure the recall of a run: `osrerank evaluate -m R@100`",
}
"""What a user may still name -> one sentence. Options stand as ``rerank.NAME``, commands as ``osrerank NAME``, options
of a command as ``osrerank NAME --OPTION``, variables and fields of a model card by their names."""


def instead_of(name: str) -> str:
    """Return what to do instead of a name that is gone, as one sentence; "" where it never was one."""
    return REMOVED.get(name, "")
