"""What the edge asks of a guard: whether a request may go on, and who its caller is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from angelia.api.author_proof import AuthorProof
from angelia.api.caller import Caller, ClientAddress
from angelia.api.operation import Operation, Surface
from angelia.envelope.times import unix_ms

ReadBody = Callable[[], Awaitable[bytes]]


class UnverifiedRequest(msgspec.Struct, frozen=True):
    """A request whose credential is not verified. `path_values` are those of the operation's parameters, as sent."""

    operation: Operation[Any]
    path: str
    path_values: Sequence[str]
    query: str
    headers: Mapping[str, str]
    client: ClientAddress
    surface: Surface
    now: datetime

    @property
    def now_ms(self) -> int:
        return unix_ms(self.now)


class Admission(Protocol):
    """Admits requests in two stages: the address before the credential is verified, the caller afterwards."""

    async def check_address(
        self, operation: Operation[Any] | None, client: ClientAddress, now: datetime
    ) -> dict[str, str]:
        """Refuses addresses that are blocked or over their limit. Returns headers of the answer."""

    async def identify(self, request: UnverifiedRequest, read_body: ReadBody) -> tuple[Caller, bytes, dict[str, str]]:
        """Verifies the caller. Returns it, with the body and headers of the answer."""

    async def check_token(self, request: UnverifiedRequest) -> None:
        """Verifies the bearer token of a request that takes one besides its signature."""

    async def count_refusal(self, request: UnverifiedRequest, code: str) -> None:
        """Counts a credential that did not verify against the address of the request."""

    async def prove_possession(self, request: UnverifiedRequest, body: bytes, public_key: bytes) -> bool:
        """Whether the request is signed with this key, which need not be registered. A wrong signature is an error."""

    def author_proof(self, request: UnverifiedRequest, caller: Caller, body: bytes) -> AuthorProof | None:
        """The signature by which `identify` knows the caller; None for other credentials."""
