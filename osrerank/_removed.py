"""Names of 0.2 that are gone, each with what to do instead; the changelog has the same table."""

REMOVED: dict[str, str] = {
    "osrerank judgments": "make judgments from clicks with OpenSearch's Search Relevance plugin over the UBI events",
}
"""What a user may still name -> one sentence. Options stand as ``rerank.NAME``, commands as ``osrerank NAME``, options
of a command as ``osrerank NAME --OPTION``, variables and fields of a model card by their names."""


def instead_of(name: str) -> str:
    """Return what to do instead of a name that is gone, as one sentence; "" where it never was one."""
    return REMOVED.get(name, "")
