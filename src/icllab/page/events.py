"""What goes on, told to the browser as it changes: server-sent events."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from icllab.core.spelling import strict

BUSY, IDLE = 1.0, 3.0
"""Seconds between looks while something runs, and while nothing does."""
_SILENCE = 15.0


def stream(request: Request, state: Callable[[], dict[str, Any]], ending: asyncio.Event) -> Response:
    """An answer that goes on until ``ending``: ``state()`` whenever it has changed, as JSON.

    ``"busy"`` in it says how often to look.
    """

    async def told() -> AsyncIterator[str]:
        last, silent = "", 0.0
        yield "retry: 2000\n\n"
        while not (ending.is_set() or await request.is_disconnected()):
            now = await run_in_threadpool(state)
            said = json.dumps(strict(now), allow_nan=False)
            if said != last:
                last, silent = said, 0.0
                yield f"data: {said}\n\n"
            elif silent > _SILENCE:
                silent = 0.0
                yield ": still here\n\n"
            pause = BUSY if now["busy"] else IDLE
            silent += pause
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ending.wait(), pause)

    return StreamingResponse(told(), media_type="text/event-stream")
