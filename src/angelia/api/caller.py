"""Who calls: the one shape behind the three credentials."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from uuid import UUID

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class AgentRow:
    """One agent as the ledger has it. `id` and `handle` never change once the handle is claimed; until then the handle
    is the id in text."""

    id: UUID
    handle: str
    public_key: bytes
    key_id: UUID
    name: str
    email: str
    aicq_signatures: bool
    registered_at: datetime

    def is_named(self, name: str) -> bool:
        """Whether a path or a query means this agent: by its handle, or by its id."""
        return name in (self.handle, str(self.id))


class Role(IntEnum):
    """What a credential may do; a higher one includes the lower."""

    NONE = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


ROLES = {role.label: role for role in Role if role is not Role.NONE}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller that the guard admitted. Slices ask this record, and nothing else, who calls."""

    address: Address
    role: Role = Role.NONE
    agent: AgentRow | None = None
    name: str | None = None

    @property
    def known_as(self) -> str:
        """How the audit and the log name this caller: the credential, if it is not the agent's own signature."""
        if self.name is not None:
            return self.name
        return self.agent.handle if self.agent is not None else "anonymous"

    @property
    def is_operator(self) -> bool:
        return self.role >= Role.ADMIN
