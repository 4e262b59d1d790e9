"""What a fleet needs: bytes by tier, partitions, nodes and bandwidth.

Every figure that it is computed from is an option of `simulate`: `capacity_` and the field's name. A default is
measured where its comment names a benchmark (on 2 cores, x86_64, which PostgreSQL, Valkey and the server share); the
others are examples, to be replaced by those of your fleet and your machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any, TypeVar

from angelia.envelope.ids import BUCKETS
from angelia.errors import InvalidArgument
from angelia.pipeline.simulation.fleet import are_numbers

T = TypeVar("T")
_DAY = 86_400
_OPTION = "capacity_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The fleet, and how long its messages and receipts are kept: examples."""

    agents: int = 1_000_000
    messages_per_second: float = 1_000_000.0
    mean_wire_bytes: float = 6_000.0
    ttl_share: float = 0.003  # of all messages, wait until they expire
    ttl_days: float = 7.0
    settled_seconds: float = 60.0  # how long all others are in the ledger
    signed_share: float = 0.98  # of all receipts, are signed by the recipient
    receipt_days: float = 30.0  # in the ledger
    archive_years: float = 7.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one thing in one tier, measured by bench/stored_bytes.py. The archive's are measured in each run."""

    signed_receipt: float = 3_473  # alone; its signatures are random bytes, which do not compress
    ledger_receipt: float = 1_252  # a row of delivery_receipts and its index entries, without the signed receipt
    ledger_envelope: float = 1_099  # a row of envelopes and its index entries, without the envelope
    hot_envelope: float = 359  # queue entry and bookkeeping, without the hot tier's copy of the envelope
    hot_agent: float = 10_117  # cached bundle, limits, nonces
    ledger_agent: float = 2_430_000  # a year of bundles, one every three days, and 100 one-time keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What one node of each kind carries."""

    ledger_messages_per_second: float = 3_900  # bench/group_commit.py: 7,762 durable writes/s; two a message
    ledger_bytes: float = 8e12  # example: its disk
    hot_bytes: float = 48e9  # example: of 64 GB of memory, the rest is fragmentation and forks
    api_messages_per_second: float = 310  # bench/mail.py: 1,055 sends/s and 1,513 receives/s by two processes
    link_bits_per_second: float = 10e9  # example
    copies: int = 2  # example: of the ledger and the hot tier, a primary and a standby


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """All that capacity is computed from, but for the size of an archived receipt."""

    load: Load = Load()
    sizes: Sizes = Sizes()
    nodes: Nodes = Nodes()

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Assumptions:
        """From a job's options; raises InvalidArgument for a value that cannot be computed with."""
        return cls(load=_given(Load, options), sizes=_given(Sizes, options), nodes=_given(Nodes, options))


OPTIONS = tuple(_OPTION + field.name for kind in (Load, Sizes, Nodes) for field in fields(kind))


def needed(assumed: Assumptions, archived_receipt: float) -> dict[str, Any]:
    """Bytes, messages and nodes that the fleet needs, beside all that they were computed from. `archived_receipt` is
    the size of a receipt in the archive, without its signatures."""
    load, sizes, nodes = assumed.load, assumed.sizes, assumed.nodes
    rate = load.messages_per_second
    residence = load.ttl_share * load.ttl_days * _DAY + (1 - load.ttl_share) * load.settled_seconds
    waiting = rate * residence
    signed = load.signed_share * sizes.signed_receipt
    per_day = rate * _DAY
    hot = waiting * (sizes.hot_envelope + load.mean_wire_bytes) + load.agents * sizes.hot_agent
    envelopes = waiting * (sizes.ledger_envelope + load.mean_wire_bytes)
    receipts = per_day * load.receipt_days * (sizes.ledger_receipt + signed)
    archived = per_day * 365.25 * load.archive_years
    ledger = envelopes + receipts + load.agents * sizes.ledger_agent
    wire = rate * load.mean_wire_bytes
    ledger_nodes = max(ceil(rate / nodes.ledger_messages_per_second), ceil(ledger / nodes.ledger_bytes))
    return {
        "waiting_messages": round(waiting),
        "receipts_a_day": round(per_day),
        "archived_receipts": round(archived),
        "hot_bytes": round(hot),
        "ledger_bytes": round(ledger),
        "ledger_envelope_bytes": round(envelopes),
        "ledger_receipt_bytes": round(receipts),
        "archive_bytes": round(archived * (archived_receipt + signed)),
        "archive_bytes_unsigned": round(archived * archived_receipt),
        "buckets": BUCKETS,
        "messages_per_second_a_bucket": round(rate / BUCKETS, 1),
        "ledger_day_partitions": ceil(load.receipt_days) + 8,  # and a week made ahead
        "ledger_nodes": nodes.copies * ledger_nodes,
        "hot_nodes": nodes.copies * ceil(hot / nodes.hot_bytes),
        "api_processes": ceil(rate / nodes.api_messages_per_second),
        "bandwidth_bits_per_second": round(2 * 8 * wire),  # in and out again
        "links": ceil(2 * 8 * wire / nodes.link_bits_per_second),
        "load": asdict(load),
        "sizes": {"archived_receipt": archived_receipt, **asdict(sizes)},
        "nodes": asdict(nodes),
    }


def _given(kind: type[T], options: Mapping[str, Any]) -> T:
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    given = {name: options[_OPTION + name] for name in names if options.get(_OPTION + name) is not None}
    for name, value in given.items():
        least = 1 if kind is Nodes else 0  # what a node carries is divided by
        if not are_numbers(value) or value < least or (name.endswith("_share") and value > 1):
            raise InvalidArgument(f"{_OPTION}{name} cannot be {value}", hint="angelia pipeline run simulate --help")
    return kind(**given)
