"""Turn a cluster's errors into one sentence, for commands that set the cluster up to call a rerank server."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opensearchpy import ConnectionError as Unreachable
from opensearchpy import TransportError

from osrerank.errors import InstallError


@contextmanager
def explained(step: str) -> Iterator[None]:
    """Turn a cluster's errors into one sentence.

    Raises:
        InstallError: a request failed within.
    """
    try:
        yield
    except Unreachable as error:
        raise InstallError(f"{step}: the cluster does not answer ({error.error})", step=step) from error
    except TransportError as error:
        # "status_exception" has the rerank server's status, so it does not mean a missing right on the cluster
        if error.status_code in (401, 403) and error.error != "status_exception":
            fix = "use a user who has the role osrerank_setup (docs/operations.md)"
            raise InstallError(f"{step}: not allowed ({_reason_of(error)}); {fix}", step=step) from error
        raise InstallError(f"{step}: {_reason_of(error)}", step=step) from error


@contextmanager
def explained_of_server(step: str) -> Iterator[None]:
    """Turn a cluster's errors into one sentence that also says what to check about the rerank server.

    Raises:
        InstallError: a request failed within.
    """
    try:
        with explained(step):
            yield
    except InstallError as error:
        fix = "check that the cluster's nodes reach osrerank serve, and that OSRERANK_SERVER_TOKEN is its token"
        raise InstallError(f"{error}; {fix}", step=step) from error


def _reason_of(error: TransportError) -> str:
    """Return the engine's reason and what caused it, in one line."""
    info = error.info if isinstance(error.info, Mapping) else {}
    fault = info.get("error", info)
    reason = fault.get("reason") or fault.get("type") if isinstance(fault, Mapping) else fault
    cause = fault.get("caused_by", {}).get("reason") if isinstance(fault, Mapping) else None
    return " ".join(f"{reason or error.error}{'' if cause is None else f' {cause}'}".split())[:500]
