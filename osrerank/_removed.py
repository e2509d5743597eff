"""Names of 0.2 that are gone, each with what to do instead; the changelog has the same table."""

REMOVED: dict[str, str] = {
    "osrerank advise --p95-ms": "choose a lower depth by the table of the --html report",
    "osrerank advise --searches-per-s": "ask osrerank plan how many machines a load needs",
    "osrerank advise --sample": "every judged query is searched: name a file of fewer queries",
    "osrerank advise --seed": "every judged query is searched, so that none are drawn",
    "osrerank advise --budget-s": "every judged query is searched: name a file of fewer queries",
    "osrerank advise --compare": "run osrerank --model NAME advise for each model",
    "osrerank advise --pool": "save judgments by click with osrerank serve --ui --save-judgments",
}
"""What a user may still name -> one sentence. Options stand as ``rerank.NAME``, commands as ``osrerank NAME``, options
of a command as ``osrerank NAME --OPTION``, variables and fields of a model card by their names."""


def instead_of(name: str) -> str:
    """Return what to do instead of a name that is gone, as one sentence; "" where it never was one."""
    return REMOVED.get(name, "")
