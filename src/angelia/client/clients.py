"""The two clients: the same verbs, once to be awaited and once blocking."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator, Iterator
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from uuid import UUID

import httpx

from angelia.client import (
    calls,
    channel_calls,
    channel_keys,
    channel_membership,
    channel_publishing,
    channel_reading,
    channel_rosters,
    channel_signing,
    delivery_status,
    key_calls,
    mail_calls,
    mail_receiving,
    mail_sending,
    mail_stream,
    mailbox_keys,
    mailbox_server,
    policy_calls,
    request_reply,
)
from angelia.client.channel_reading import Unopened
from angelia.client.exchange import Call, Response
from angelia.client.mail_stream import Event
from angelia.client.transport import (
    Body,
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
from angelia.mailbox.channels import ChannelMessage
from angelia.mailbox.mailbox import Mailbox

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
        deadline = time.monotonic() + step.timeout
        try:
            async with self._http.stream(**_arguments(step)) as answer:
                body = Body(deadline)
                async for chunk in answer.aiter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return _response(step, answer, body.read())
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)

    def stream_mail(self, *, lease_seconds: int = 30) -> AsyncGenerator[Event, None]:
        """Mail as it comes, and what concerns the agent's keys and its own mail; taken up again when it breaks off.

        `take_in` opens and settles what comes; `contextlib.aclosing` ends the listening in time."""
        return mail_stream.events(self._line, self._http, lease_seconds)

    async def run_mailbox(self, mailbox: Mailbox, handler: mailbox_server.Handler) -> None:
        """Serve a mailbox until cancelled: mail goes to the handler one by one, also such as was kept out and is
        allowed by now; the outbox is sent, receipts are heard of, keys are kept fresh. Faults that pass are waited for.

        What the handler raises ends it. Its message is in the inbox and the relay has been told, so it is not handed
        to it again."""

        def listen(connected: Callable[[], None]) -> AsyncGenerator[Event, None]:
            return mail_stream.events(self._line, self._http, connected=connected)

        await mailbox_server.Serving(mailbox, handler, self._run, listen).forever()

    async def tail(
        self, mailbox: Mailbox, channel: str | UUID, *, after_offset: int | None = None
    ) -> AsyncIterator[ChannelMessage | Unopened]:
        """The messages of a channel as they come, without an end; `commit` says up to where they are done with."""
        found = await self.find_channel(mailbox, channel)
        following = channel_reading.Tail(mailbox, found.channel_id, after_offset, name=found.name)
        while True:
            for one in await self._run(following.next()):
                yield one

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
    block_agent = awaited(calls.block_agent)
    unblock_agent = awaited(calls.unblock_agent)
    blocked_agents = awaited(calls.blocked_agents)
    policies = awaited(policy_calls.policies)
    add_policy = awaited(policy_calls.add_policy)
    remove_policy = awaited(policy_calls.remove_policy)
    check_policy = awaited(policy_calls.check_policy)
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
    publish_keys = awaited(channel_signing.publish_keys)
    rotate_keys = awaited(channel_signing.rotate_keys)
    emergency_rotate_keys = awaited(channel_signing.emergency_rotate_keys)
    rotate_due_keys = awaited(channel_signing.rotate_due_keys)
    tend_keys = awaited(channel_signing.tend_keys)
    find_keys = awaited(mailbox_keys.find_keys)
    seal = awaited(mailbox_keys.seal)
    reseal = awaited(mailbox_keys.reseal)
    open = awaited(mailbox_keys.open_envelope)
    send_envelope = awaited(mail_calls.send_envelope)
    send_envelopes = awaited(mail_calls.send_envelopes)
    poll = awaited(mail_calls.poll)
    acknowledge = awaited(mail_calls.acknowledge)
    nack = awaited(mail_calls.nack)
    message_status = awaited(mail_calls.message_status)
    withdraw_message = awaited(mail_calls.withdraw_message)
    receipts = awaited(mail_calls.receipts)
    receipt = awaited(mail_calls.receipt)
    hand_in_receipt = awaited(mail_calls.hand_in_receipt)
    dead_letters = awaited(mail_calls.dead_letters)
    requeue_dead_letter = awaited(mail_calls.requeue_dead_letter)
    send = awaited(mail_sending.send)
    send_sealed = awaited(mail_sending.send_sealed)
    deliver_outbox = awaited(mail_sending.deliver_outbox)
    retry_outbox = awaited(mail_sending.retry_outbox)
    withdraw = awaited(mail_sending.withdraw)
    receive = awaited(mail_receiving.receive)
    receive_admitted = awaited(mail_receiving.receive_admitted)
    take_in = awaited(mail_receiving.take_in)
    update_outbox = awaited(delivery_status.update_outbox)
    update_sent = awaited(delivery_status.update_sent)
    check_attested = awaited(delivery_status.check_attested)
    send_and_wait = awaited(request_reply.send_and_wait)
    answer = awaited(request_reply.answer)
    create_channel = awaited(channel_membership.create_channel)
    find_channel = awaited(channel_membership.find_channel)
    look_up_channel = awaited(channel_membership.look_up_channel)
    channels = awaited(channel_calls.channels)
    channel = awaited(channel_calls.channel)
    update_channel = awaited(channel_membership.update_channel)
    delete_channel = awaited(channel_membership.delete_channel)
    channel_allowlist = awaited(channel_calls.channel_allowlist)
    allow = awaited(channel_membership.allow)
    disallow = awaited(channel_membership.disallow)
    roster = awaited(channel_membership.roster)
    propose_roster = awaited(channel_membership.propose_roster)
    sign_roster = awaited(channel_membership.sign_roster)
    channel_roster = awaited(channel_calls.channel_roster)
    put_roster = awaited(channel_calls.put_roster)
    resign_rosters = awaited(channel_rosters.resign_rosters)
    subscribe = awaited(channel_membership.subscribe)
    unsubscribe = awaited(channel_membership.unsubscribe)
    pause = awaited(channel_calls.pause)
    resume = awaited(channel_calls.resume)
    publish = awaited(channel_publishing.publish)
    publish_envelope = awaited(channel_calls.publish_envelope)
    share_key = awaited(channel_publishing.share_key)
    take_keys = awaited(channel_keys.take_keys)
    channel_messages = awaited(channel_calls.channel_messages)
    read_channel = awaited(channel_reading.read_channel)
    follow = awaited(channel_reading.Tail.next)
    commit = awaited(channel_calls.commit)
    set_epoch = awaited(channel_calls.set_epoch)
    subscribers = awaited(channel_calls.subscribers)
    audit_events = awaited(calls.audit_events)
    audit_chain = awaited(calls.audit_chain)
    audit_checkpoints = awaited(calls.audit_checkpoints)
    audit_checkpoint = awaited(calls.audit_checkpoint)
    audit_unsealed = awaited(calls.audit_unsealed)
    runs = awaited(calls.runs)
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
        deadline = time.monotonic() + step.timeout
        try:
            with self._http.stream(**_arguments(step)) as answer:
                body = Body(deadline)
                for chunk in answer.iter_bytes():
                    if (problem := body.take(chunk)) is not None:
                        return problem
                return _response(step, answer, body.read())
        except httpx.RequestError as error:
            return described(error, timeout=step.allowed)

    def stream_mail(self, *, lease_seconds: int = 30) -> Generator[Event, None, None]:
        """Mail as it comes, and what concerns the agent's keys and its own mail; taken up again when it breaks off.

        `take_in` opens and settles what comes; `contextlib.closing` ends the listening in time."""
        return mail_stream.blocking_events(self._line, self._http, lease_seconds)

    def tail(
        self, mailbox: Mailbox, channel: str | UUID, *, after_offset: int | None = None
    ) -> Iterator[ChannelMessage | Unopened]:
        """The messages of a channel as they come, without an end; `commit` says up to where they are done with."""
        found = self.find_channel(mailbox, channel)
        following = channel_reading.Tail(mailbox, found.channel_id, after_offset, name=found.name)
        while True:
            yield from self._run(following.next())

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
    block_agent = blocking(calls.block_agent)
    unblock_agent = blocking(calls.unblock_agent)
    blocked_agents = blocking(calls.blocked_agents)
    policies = blocking(policy_calls.policies)
    add_policy = blocking(policy_calls.add_policy)
    remove_policy = blocking(policy_calls.remove_policy)
    check_policy = blocking(policy_calls.check_policy)
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
    publish_keys = blocking(channel_signing.publish_keys)
    rotate_keys = blocking(channel_signing.rotate_keys)
    emergency_rotate_keys = blocking(channel_signing.emergency_rotate_keys)
    rotate_due_keys = blocking(channel_signing.rotate_due_keys)
    tend_keys = blocking(channel_signing.tend_keys)
    find_keys = blocking(mailbox_keys.find_keys)
    seal = blocking(mailbox_keys.seal)
    reseal = blocking(mailbox_keys.reseal)
    open = blocking(mailbox_keys.open_envelope)
    send_envelope = blocking(mail_calls.send_envelope)
    send_envelopes = blocking(mail_calls.send_envelopes)
    poll = blocking(mail_calls.poll)
    acknowledge = blocking(mail_calls.acknowledge)
    nack = blocking(mail_calls.nack)
    message_status = blocking(mail_calls.message_status)
    withdraw_message = blocking(mail_calls.withdraw_message)
    receipts = blocking(mail_calls.receipts)
    receipt = blocking(mail_calls.receipt)
    hand_in_receipt = blocking(mail_calls.hand_in_receipt)
    dead_letters = blocking(mail_calls.dead_letters)
    requeue_dead_letter = blocking(mail_calls.requeue_dead_letter)
    send = blocking(mail_sending.send)
    send_sealed = blocking(mail_sending.send_sealed)
    deliver_outbox = blocking(mail_sending.deliver_outbox)
    retry_outbox = blocking(mail_sending.retry_outbox)
    withdraw = blocking(mail_sending.withdraw)
    receive = blocking(mail_receiving.receive)
    receive_admitted = blocking(mail_receiving.receive_admitted)
    take_in = blocking(mail_receiving.take_in)
    update_outbox = blocking(delivery_status.update_outbox)
    update_sent = blocking(delivery_status.update_sent)
    check_attested = blocking(delivery_status.check_attested)
    send_and_wait = blocking(request_reply.send_and_wait)
    answer = blocking(request_reply.answer)
    create_channel = blocking(channel_membership.create_channel)
    find_channel = blocking(channel_membership.find_channel)
    look_up_channel = blocking(channel_membership.look_up_channel)
    channels = blocking(channel_calls.channels)
    channel = blocking(channel_calls.channel)
    update_channel = blocking(channel_membership.update_channel)
    delete_channel = blocking(channel_membership.delete_channel)
    channel_allowlist = blocking(channel_calls.channel_allowlist)
    allow = blocking(channel_membership.allow)
    disallow = blocking(channel_membership.disallow)
    roster = blocking(channel_membership.roster)
    propose_roster = blocking(channel_membership.propose_roster)
    sign_roster = blocking(channel_membership.sign_roster)
    channel_roster = blocking(channel_calls.channel_roster)
    put_roster = blocking(channel_calls.put_roster)
    resign_rosters = blocking(channel_rosters.resign_rosters)
    subscribe = blocking(channel_membership.subscribe)
    unsubscribe = blocking(channel_membership.unsubscribe)
    pause = blocking(channel_calls.pause)
    resume = blocking(channel_calls.resume)
    publish = blocking(channel_publishing.publish)
    publish_envelope = blocking(channel_calls.publish_envelope)
    share_key = blocking(channel_publishing.share_key)
    take_keys = blocking(channel_keys.take_keys)
    channel_messages = blocking(channel_calls.channel_messages)
    read_channel = blocking(channel_reading.read_channel)
    follow = blocking(channel_reading.Tail.next)
    commit = blocking(channel_calls.commit)
    set_epoch = blocking(channel_calls.set_epoch)
    subscribers = blocking(channel_calls.subscribers)
    audit_events = blocking(calls.audit_events)
    audit_chain = blocking(calls.audit_chain)
    audit_checkpoints = blocking(calls.audit_checkpoints)
    audit_checkpoint = blocking(calls.audit_checkpoint)
    audit_unsealed = blocking(calls.audit_unsealed)
    runs = blocking(calls.runs)
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


def _response(step: Send, answer: httpx.Response, body: bytes) -> Response:
    return Response(step.method, answer.request.url.path, answer.status_code, answer.headers, body)
