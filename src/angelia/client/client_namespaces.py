"""What both clients have: one namespace per slice, and the steps of an exchange."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic

from angelia.client.namespaces import Mode, Run
from angelia.client.transport import Outcome, Step

if TYPE_CHECKING:
    from angelia.client.channel_verbs import ChannelVerbs
    from angelia.client.key_verbs import KeyVerbs
    from angelia.client.room_verbs import DmVerbs
    from angelia.client.verbs import (
        AgentVerbs,
        AuditVerbs,
        GuardVerbs,
        PolicyVerbs,
        RunVerbs,
        ServerVerbs,
        TokenVerbs,
    )


class ClientNamespaces(Generic[Mode]):
    """The namespaces of a client, one per slice. Each is loaded when it is first used: a command uses one or two."""

    def __init__(self, run: Run) -> None:
        self._run_exchange = run

    @cached_property
    def agents(self) -> AgentVerbs[Mode]:
        from angelia.client.verbs import AgentVerbs

        return AgentVerbs(self._run_exchange)

    @cached_property
    def tokens(self) -> TokenVerbs[Mode]:
        from angelia.client.verbs import TokenVerbs

        return TokenVerbs(self._run_exchange)

    @cached_property
    def guard(self) -> GuardVerbs[Mode]:
        from angelia.client.verbs import GuardVerbs

        return GuardVerbs(self._run_exchange)

    @cached_property
    def policy(self) -> PolicyVerbs[Mode]:
        from angelia.client.verbs import PolicyVerbs

        return PolicyVerbs(self._run_exchange)

    @cached_property
    def keys(self) -> KeyVerbs[Mode]:
        from angelia.client.key_verbs import KeyVerbs

        return KeyVerbs(self._run_exchange)

    @cached_property
    def channels(self) -> ChannelVerbs[Mode]:
        from angelia.client.channel_verbs import ChannelVerbs

        return ChannelVerbs(self._run_exchange)

    @cached_property
    def dms(self) -> DmVerbs[Mode]:
        from angelia.client.room_verbs import DmVerbs

        return DmVerbs(self._run_exchange)

    @cached_property
    def audit(self) -> AuditVerbs[Mode]:
        from angelia.client.verbs import AuditVerbs

        return AuditVerbs(self._run_exchange)

    @cached_property
    def runs(self) -> RunVerbs[Mode]:
        from angelia.client.verbs import RunVerbs

        return RunVerbs(self._run_exchange)

    @cached_property
    def server(self) -> ServerVerbs[Mode]:
        from angelia.client.verbs import ServerVerbs

        return ServerVerbs(self._run_exchange)


def next_step(steps: Generator[Step, Outcome, Any], outcome: Outcome) -> Step | StopIteration:
    """Returns the next step of an exchange, or its end with the answer, which is not raised: a StopIteration would not
    survive the way back from a thread."""
    try:
        return steps.send(outcome)
    except StopIteration as done:
        return done
