"""The requests in flight of a process: how many, how large, and how long they may take."""

from __future__ import annotations

import asyncio
import errno
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from b2nd_dask.storage.read.connection import LOW_SPEED, call_serially, requests_at_once, setting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

#: Bytes of a request per slot that it takes. With more bytes in flight the first ones would arrive
#: later, and nothing could be decoded in the meantime.
_SLOT_NBYTES = 512 << 10

#: Least number of concurrent requests of a client: botocore's default for connections.
_CONNECTIONS = 10


class _Traffic:
    """The requests of one event loop; only that loop changes it."""

    def __init__(self) -> None:
        # not the loop's own threads, which also resolve host names: all of them could wait here
        self.caller = ThreadPoolExecutor(1, "b2nd-dask-store")
        # held while a request takes its slots: else two could wait for each other's
        self.turn = asyncio.Lock()
        # by number of slots, a setting that users may change
        self.slots: dict[int, asyncio.Semaphore] = {}
        self.sizes: list[int] = []


#: By event loop, since a forked child has its own.
_traffic: WeakKeyDictionary[asyncio.AbstractEventLoop, _Traffic] = WeakKeyDictionary()


def _own_traffic() -> _Traffic:
    loop = asyncio.get_running_loop()
    if loop not in _traffic:
        _traffic[loop] = _Traffic()
    return _traffic[loop]


def slots_of(nbytes: int, most: int) -> int:
    """Number of slots that a request takes; `most` (the setting `CONCURRENCY`) exist."""
    return max(1, min(most, math.ceil(nbytes / _SLOT_NBYTES)))


@asynccontextmanager
async def in_flight(nbytes: int) -> AsyncIterator[None]:
    """Wait until a request for `nbytes` may start, and count it as in flight."""
    traffic, most = _own_traffic(), requests_at_once()
    async with AsyncExitStack() as held:
        async with traffic.turn:
            slots = traffic.slots.setdefault(most, asyncio.Semaphore(most))
            for _ in range(slots_of(nbytes, most)):
                await held.enter_async_context(slots)
        traffic.sizes.append(nbytes)
        held.callback(traffic.sizes.remove, nbytes)
        yield


@asynccontextmanager
async def in_time(nbytes: int = 0) -> AsyncIterator[None]:
    """Raise TimeoutError if the start of a response, or `nbytes` of it, takes too long.

    The limit grows with the requests in flight, which share connections and bandwidth.
    """
    limit, pause = map(setting, LOW_SPEED)
    sizes = _own_traffic().sizes
    rounds = math.ceil(len(sizes) / _CONNECTIONS)
    seconds = rounds * pause + max(sum(sizes), nbytes) / limit
    try:
        async with asyncio.timeout(seconds) as waiting:
            yield
    except TimeoutError as error:
        if not waiting.expired():
            raise
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"{nbytes or 'the first'} bytes of a response took more than {seconds:.3g} s, limited "
            f"by low_speed_time ({pause:g} s) and low_speed_limit ({limit:g} bytes a second); for "
            'other values set fsspec.config.conf["b2nd"] = {"low_speed_time": ...}',
        ) from error


async def call_in_thread(function: Callable[..., Any], *args: Any, **keywords: Any) -> Any:
    """Call a file system that has no event loop in a thread, one call at a time."""
    call = partial(call_serially, function, *args, **keywords)
    return await asyncio.get_running_loop().run_in_executor(_own_traffic().caller, call)
