"""Answer the requests of a look-up."""

from collections.abc import Generator
from typing import Any


def answered(steps: Generator[Any, Any, Any], *answers: Any) -> tuple[Any, list[str]]:
    """Answer a generator's requests in turn; return what it returns, and the paths that it asked for."""
    paths, remaining, answer = list[str](), list(answers), None
    try:
        while True:
            request = steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
            paths.append(request.path)
            answer = remaining.pop(0)
    except StopIteration as end:
        return end.value, paths
