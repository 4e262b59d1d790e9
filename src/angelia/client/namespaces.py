"""Verbs grouped by slice: each is declared once, and serves the client that blocks and the one that is awaited."""

from __future__ import annotations

import functools
import inspect
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Sequence
from types import MethodType
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from angelia.client.exchange import Exchange
from angelia.mailbox.mailbox import Mailbox

P = ParamSpec("P")
T = TypeVar("T")


class Blocking:
    """Marks the namespaces of a client that returns when the answer is there."""


class Awaited:
    """Marks the namespaces of a client whose verbs are coroutines."""


Mode = TypeVar("Mode", Blocking, Awaited)
Run = Callable[[Exchange[Any]], Any]


class Namespace(Generic[Mode]):
    """The verbs of one slice on one client. `run` takes an exchange to its end, as that client does."""

    def __init__(self, run: Run) -> None:
        self._run = run


class OwnNamespace(Namespace[Mode]):
    """The verbs of one slice for one agent, whose mailbox they work with."""

    def __init__(self, run: Run, mailbox: Mailbox) -> None:
        super().__init__(run)
        self._mailbox = mailbox


class Verb(Generic[P, T]):
    """A verb as a method of a namespace, with the signature and the docstring of its exchange."""

    def __init__(self, exchange: Callable[P, Exchange[T]]) -> None:
        self._exchange = exchange
        self.__doc__ = exchange.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, namespace: None, owner: type) -> Verb[P, T]: ...
    @overload
    def __get__(self, namespace: Namespace[Blocking], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, namespace: Namespace[Awaited], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, namespace: Namespace[Any] | None, owner: type) -> Any:
        if namespace is None:
            return self
        exchange = self._of(namespace)

        @functools.wraps(exchange)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return namespace._run(exchange(*args, **kwargs))

        method.__name__ = method.__qualname__ = self._name
        return method

    def _of(self, namespace: Any) -> Callable[..., Exchange[T]]:
        return self._exchange


class OwnVerb(Verb[P, T]):
    """A verb as a method of an agent's namespace: its exchange is given the agent's mailbox as its first argument."""

    def __init__(self, exchange: Callable[Concatenate[Mailbox, P], Exchange[T]]) -> None:
        super().__init__(cast(Callable[P, Exchange[T]], exchange))

    def _of(self, namespace: OwnNamespace[Any]) -> Callable[..., Exchange[T]]:
        return MethodType(self._exchange, namespace._mailbox)


class Batches(ABC, Generic[T]):
    """Results that come some at a time; `pause` is how many seconds to wait before the next ones are asked for."""

    pause = 0.0

    @abstractmethod
    def next(self) -> Exchange[Sequence[T] | None]:
        """Returns the next results, or None after the last of them."""

    def give(self, one: T) -> None:
        """The loop gets a result now."""

    def leave(self, *, cancelled: bool) -> None:
        """The loop was left, because its task was cancelled or for another reason."""


class Pages(Batches[T]):
    """A list that comes page by page. `fetch` takes a cursor and returns a page with the cursor of the next one."""

    def __init__(self, fetch: Callable[[str | None], Exchange[tuple[Sequence[T], str | None]]]) -> None:
        self._fetch = fetch
        self._cursor: str | None = None
        self._ended = False

    def next(self) -> Exchange[Sequence[T] | None]:
        if self._ended:
            return None
        page, self._cursor = yield from self._fetch(self._cursor)
        self._ended = self._cursor is None or not page
        return page


class Iteration(Generic[P, T]):
    """A verb as a method that goes through batches of results, one by one: with `for`, or with `async for`."""

    def __init__(self, batches: Callable[Concatenate[Any, P], Batches[T]]) -> None:
        self._batches = batches
        self.__doc__ = batches.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> Iteration[P, T]: ...
    @overload
    def __get__(self, namespace: Namespace[Blocking], owner: type) -> Callable[P, Generator[T, None, None]]: ...
    @overload
    def __get__(self, namespace: Namespace[Awaited], owner: type) -> Callable[P, AsyncGenerator[T, None]]: ...
    def __get__(self, namespace: Namespace[Any] | None, owner: type) -> Any:
        if namespace is None:
            return self
        each = _each_awaited if inspect.iscoroutinefunction(namespace._run) else _each
        batches = MethodType(self._batches, namespace)

        @functools.wraps(batches)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            made = batches(*args, **kwargs)
            results = each(namespace._run, made)
            # Called at the moment when the loop drops it, so that a task that is being cancelled can be seen.
            weakref.finalize(results, _leave, made).atexit = False
            return results

        return method


def _each(run: Run, batches: Batches[T]) -> Generator[T, None, None]:
    while (some := run(batches.next())) is not None:
        for one in some:
            batches.give(one)
            yield one
        time.sleep(batches.pause)


async def _each_awaited(run: Run, batches: Batches[T]) -> AsyncGenerator[T, None]:
    import asyncio

    while (some := await run(batches.next())) is not None:
        for one in some:
            batches.give(one)
            yield one
        await asyncio.sleep(batches.pause)


def _leave(batches: Batches[Any]) -> None:
    import asyncio  # not at the top: the blocking client does without it, and it costs more than a request

    try:
        task = asyncio.current_task()
    except RuntimeError:  # no event loop runs in this thread
        task = None
    batches.leave(cancelled=task is not None and task.cancelling() > 0)
