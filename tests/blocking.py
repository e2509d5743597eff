"""An asynchronous client behind synchronous calls, so that the same test bodies run on both clients."""

import asyncio
import inspect
from typing import Any


class Blocking:
    """Runs each coroutine of an object to its end, on one event loop."""

    def __init__(self, target: Any, runner: asyncio.Runner) -> None:
        self._target = target
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if callable(value):
            return lambda *args, **kwargs: self._finished(value(*args, **kwargs))
        return Blocking(value, self._runner) if name in ("indices", "search_pipeline") else value

    def _finished(self, value: Any) -> Any:
        async def wait() -> Any:
            return await value

        return self._runner.run(wait()) if inspect.isawaitable(value) else value
