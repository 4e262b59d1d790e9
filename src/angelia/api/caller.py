"""The caller of a request, the same record for all kinds of credentials."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from uuid import UUID

import msgspec

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class AgentRow:
    """An agent as the ledger has it. `id` never changes; `handle` is the id as text until the agent claims one,
    once."""

    id: UUID
    handle: str
    public_key: bytes
    key_id: UUID
    name: str
    email: str
    aicq_signatures: bool
    registered_at: datetime
    updated_at: datetime

    def is_named(self, name: str) -> bool:
        """Whether a name in a path or query is this agent's handle or id."""
        return name in (self.handle, str(self.id))


class Role(IntEnum):
    """What a credential may do; a higher role includes the lower ones."""

    NONE = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3

    @property
    def label(self) -> str:
        return self.name.lower().replace("_", "-")


ROLES = {role.label: role for role in Role if role is not Role.NONE}


def subject_of(address: Address) -> str:
    """What is counted and blocked: an IPv4 address, or an IPv6 /64, since one owner has all addresses in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


class ClientAddress(msgspec.Struct, frozen=True):
    """The address of a caller, with what is made of it for each request: its text, and what is counted."""

    address: Address
    text: str
    subject: str

    @classmethod
    def of(cls, address: Address) -> ClientAddress:
        return cls(address, str(address), subject_of(address))


class Caller(msgspec.Struct, frozen=True):
    """A caller that the guard admitted; the only source from which slices know the caller."""

    address: Address
    role: Role = Role.NONE
    agent: AgentRow | None = None
    name: str | None = None

    @property
    def subject(self) -> str:
        """What is counted and blocked of the caller's address."""
        return subject_of(self.address)

    @property
    def known_as(self) -> str:
        """The caller's name in audit and log: that of its credential, or the agent's handle if the agent signed
        itself."""
        if self.name is not None:
            return self.name
        return self.agent.handle if self.agent is not None else "anonymous"

    @property
    def counted_as(self) -> str:
        """What is counted of the caller, where an address has many callers."""
        return self.known_as

    @property
    def is_operator(self) -> bool:
        return self.role >= Role.ADMIN
