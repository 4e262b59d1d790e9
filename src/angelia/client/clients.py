"""The two clients: the same verbs, once to be awaited and once blocking."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from angelia.client import calls, key_calls, sealed
from angelia.client.attempts import (
    Line,
    Observer,
    Outcome,
    Pause,
    Send,
    Signer,
    Step,
    described,
    is_loopback,
    origin,
)
from angelia.client.wire import Call, Response

P = ParamSpec("P")
T = TypeVar("T")


def awaited(
    call: Callable[P, Call[T]],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """A verb as a method of AsyncClient, with the verb's own signature and words."""

    @functools.wraps(call)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(call(*args, **kwargs))

    return method


def blocking(call: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """A verb as a method of Client, with the verb's own signature and words."""

    @functools.wraps(call)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(call(*args, **kwargs))

    return method


class AsyncClient:
    """Speaks to one server as one agent, one token, or nobody."""

    def __init__(
        self,
        url: str,
        identity: Signer | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        observer: Observer | None = None,
    ) -> None:
        self._line = Line(origin(url), identity, token, timeout, observer)
        self._http = httpx.AsyncClient(trust_env=not is_loopback(url))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    async def _run(self, call: Call[T]) -> T:
        steps, outcome = self._line.run(call), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                answer: T = done.value
                return answer
            outcome = await self._take(step)

    async def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return None
        try:
            return _response(step, await self._http.request(**_arguments(step)))
        except httpx.RequestError as error:
            return described(error, timeout=self._line.timeout)

    register = awaited(calls.register)
    who = awaited(calls.who)
    me = awaited(calls.me)
    claim_handle = awaited(calls.claim_handle)
    update_me = awaited(calls.update_me)
    agents = awaited(calls.agents)
    agent = awaited(calls.agent)
    tokens = awaited(calls.tokens)
    create_token = awaited(calls.create_token)
    revoke_token = awaited(calls.revoke_token)
    blocks = awaited(calls.blocks)
    block = awaited(calls.block)
    unblock = awaited(calls.unblock)
    settings = awaited(calls.settings)
    node = awaited(calls.node)
    publish_bundle = awaited(key_calls.publish_bundle)
    rotate_bundle = awaited(key_calls.rotate_bundle)
    emergency_bundle = awaited(key_calls.emergency_bundle)
    bundle = awaited(key_calls.bundle)
    bundles_since = awaited(key_calls.bundles_since)
    add_one_time_keys = awaited(key_calls.add_one_time_keys)
    count_one_time_keys = awaited(key_calls.count_one_time_keys)
    revoke_key = awaited(key_calls.revoke_key)
    key_history = awaited(key_calls.key_history)
    schedules = awaited(key_calls.schedules)
    put_schedule = awaited(key_calls.put_schedule)
    remove_schedule = awaited(key_calls.remove_schedule)
    report_rotation = awaited(key_calls.report_rotation)
    publish_keys = awaited(sealed.publish_keys)
    rotate_keys = awaited(sealed.rotate_keys)
    emergency_rotate_keys = awaited(sealed.emergency_rotate_keys)
    rotate_due_keys = awaited(sealed.rotate_due_keys)
    find_keys = awaited(sealed.find_keys)
    seal = awaited(sealed.seal)
    reseal = awaited(sealed.reseal)
    open = awaited(sealed.open_envelope)
    audit_events = awaited(calls.audit_events)
    audit_chain = awaited(calls.audit_chain)
    audit_checkpoints = awaited(calls.audit_checkpoints)
    audit_checkpoint = awaited(calls.audit_checkpoint)
    audit_unsealed = awaited(calls.audit_unsealed)
    health = awaited(calls.health)
    alive = awaited(calls.alive)


class Client:
    """Speaks to one server as one agent, one token, or nobody, and blocks until it answers."""

    def __init__(
        self,
        url: str,
        identity: Signer | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        observer: Observer | None = None,
    ) -> None:
        self._line = Line(origin(url), identity, token, timeout, observer)
        self._http = httpx.Client(trust_env=not is_loopback(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._http.close()

    def _run(self, call: Call[T]) -> T:
        steps, outcome = self._line.run(call), None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                answer: T = done.value
                return answer
            outcome = self._take(step)

    def _take(self, step: Step) -> Outcome:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return _response(step, self._http.request(**_arguments(step)))
        except httpx.RequestError as error:
            return described(error, timeout=self._line.timeout)

    register = blocking(calls.register)
    who = blocking(calls.who)
    me = blocking(calls.me)
    claim_handle = blocking(calls.claim_handle)
    update_me = blocking(calls.update_me)
    agents = blocking(calls.agents)
    agent = blocking(calls.agent)
    tokens = blocking(calls.tokens)
    create_token = blocking(calls.create_token)
    revoke_token = blocking(calls.revoke_token)
    blocks = blocking(calls.blocks)
    block = blocking(calls.block)
    unblock = blocking(calls.unblock)
    settings = blocking(calls.settings)
    node = blocking(calls.node)
    publish_bundle = blocking(key_calls.publish_bundle)
    rotate_bundle = blocking(key_calls.rotate_bundle)
    emergency_bundle = blocking(key_calls.emergency_bundle)
    bundle = blocking(key_calls.bundle)
    bundles_since = blocking(key_calls.bundles_since)
    add_one_time_keys = blocking(key_calls.add_one_time_keys)
    count_one_time_keys = blocking(key_calls.count_one_time_keys)
    revoke_key = blocking(key_calls.revoke_key)
    key_history = blocking(key_calls.key_history)
    schedules = blocking(key_calls.schedules)
    put_schedule = blocking(key_calls.put_schedule)
    remove_schedule = blocking(key_calls.remove_schedule)
    report_rotation = blocking(key_calls.report_rotation)
    publish_keys = blocking(sealed.publish_keys)
    rotate_keys = blocking(sealed.rotate_keys)
    emergency_rotate_keys = blocking(sealed.emergency_rotate_keys)
    rotate_due_keys = blocking(sealed.rotate_due_keys)
    find_keys = blocking(sealed.find_keys)
    seal = blocking(sealed.seal)
    reseal = blocking(sealed.reseal)
    open = blocking(sealed.open_envelope)
    audit_events = blocking(calls.audit_events)
    audit_chain = blocking(calls.audit_chain)
    audit_checkpoints = blocking(calls.audit_checkpoints)
    audit_checkpoint = blocking(calls.audit_checkpoint)
    audit_unsealed = blocking(calls.audit_unsealed)
    health = blocking(calls.health)
    alive = blocking(calls.alive)


def _arguments(step: Send) -> dict[str, Any]:
    return {
        "method": step.method,
        "url": step.url,
        "headers": step.headers,
        "content": step.body,
        "timeout": step.timeout,
    }


def _response(step: Send, answer: httpx.Response) -> Response:
    path = answer.request.url.path
    return Response(step.method, path, answer.status_code, answer.headers, answer.content)
