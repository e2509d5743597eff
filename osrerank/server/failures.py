"""Explain the errors of OpenSearch and Elasticsearch to users of ``osrerank pipeline``, in one sentence."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opensearchpy import ConnectionError as Unreachable
from opensearchpy import TransportError

from osrerank.errors import InstallError

MAX_REASON_CHARACTERS = 500
WRONG_SCORE_COUNT = "a test of the rerank server, through the cluster, gave {} scores for two texts: check its URL"
SERVER_HINT = (
    "; the cluster calls osrerank serve for this: check that its nodes reach it, and that OSRERANK_SERVER_TOKEN is the "
    "server's token"
)


@contextmanager
def explain_failures(step: str, *, calls_server: bool = False) -> Iterator[None]:
    """Turn the errors of requests in the ``with`` block into `InstallError`.

    Args:
        step: what the requests do, such as "read the licence".
        calls_server: whether the requests make the cluster call the rerank server, which might cause the error.

    Raises:
        InstallError: a request failed.
    """
    hint = SERVER_HINT if calls_server else ""
    try:
        yield
    except Unreachable as error:
        raise InstallError(f"cannot {step}: the cluster does not respond ({error.error}){hint}", step=step) from error
    except TransportError as error:
        message = f"cannot {step}: {_describe_error(error)}"
        # a "status_exception" has the status of the rerank server, so the user lacks no rights on the cluster
        if error.status_code in (401, 403) and error.error != "status_exception":
            fix = "use a user who has the role osrerank_setup (docs/operations.md)"
            message = f"not allowed to {step} ({_describe_error(error)}): {fix}"
        raise InstallError(message + hint, step=step) from error


def _describe_error(error: TransportError) -> str:
    info = error.info if isinstance(error.info, Mapping) else {}
    details = info.get("error", info)
    cause = None
    if isinstance(details, Mapping):
        reason = details.get("reason") or details.get("type")
        cause = details.get("caused_by", {}).get("reason")
    else:
        reason = details
    text = f"{reason or error.error} {cause or ''}"
    return " ".join(text.split())[:MAX_REASON_CHARACTERS]
