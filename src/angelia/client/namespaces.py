"""Verbs grouped by slice: each is declared once, and serves the client that blocks and the one that is awaited."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, overload

from angelia.client.exchange import Exchange

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


class Verb(Generic[P, T]):
    """A verb as a method of a namespace, with the signature and the docstring of its exchange."""

    def __init__(self, exchange: Callable[P, Exchange[T]]) -> None:
        self._exchange = exchange
        self.__doc__ = exchange.__doc__

    @overload
    def __get__(self, namespace: None, owner: type) -> Verb[P, T]: ...
    @overload
    def __get__(self, namespace: Namespace[Blocking], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, namespace: Namespace[Awaited], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, namespace: Namespace[Any] | None, owner: type) -> Any:
        if namespace is None:
            return self

        @functools.wraps(self._exchange)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return namespace._run(self._exchange(*args, **kwargs))

        return method
