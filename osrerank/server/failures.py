"""Turn the errors of OpenSearch and Elasticsearch into one-sentence messages for users of ``osrerank pipeline``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opensearchpy import ConnectionError as Unreachable
from opensearchpy import TransportError

from osrerank.errors import InstallError

MAX_REASON_CHARACTERS = 500
"""The maximum length of the engine's explanation of an error. Longer explanations are truncated."""
WRONG_SCORE_COUNT = "the rerank server, called by the cluster, returned {} scores for two texts: check the server's URL"
SERVER_HINT = (
    "; the cluster calls osrerank serve for this: check that its nodes reach it, and that OSRERANK_SERVER_TOKEN is the "
    "server's token"
)


@contextmanager
def explain_failures(step: str, *, calls_server: bool = False) -> Iterator[None]:
    """Raise `InstallError` if a request in the ``with`` block fails.

    Args:
        step: what the requests do, such as "read the licence". The message is then "cannot read the licence: ...".
        calls_server: whether the requests make the cluster call the rerank server. If so, the message also says what
            to check on the server.

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
        # in a "status_exception", the status is the rerank server's, so another user of the cluster would not help
        if error.status_code in (401, 403) and error.error != "status_exception":
            fix = "use a user who has the role osrerank_setup (docs/operations.md)"
            message = f"not allowed to {step} ({_describe_error(error)}): {fix}"
        raise InstallError(message + hint, step=step) from error


def _describe_error(error: TransportError) -> str:
    """Return the reason and cause in the engine's response, or else the type of the error.

    For ``{"error": {"reason": "parse error", "caused_by": {"reason": "unknown key"}}}``, this is
    "parse error unknown key".
    """
    info = error.info if isinstance(error.info, Mapping) else {}
    details = info.get("error", info)
    cause = None
    if isinstance(details, Mapping):
        reason = details.get("reason") or details.get("type")
        caused_by = details.get("caused_by")
        cause = caused_by.get("reason") if isinstance(caused_by, Mapping) else caused_by
    else:
        reason = details
    text = f"{reason or error.error} {cause or ''}"
    return " ".join(text.split())[:MAX_REASON_CHARACTERS]
