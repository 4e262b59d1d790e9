"""What a fleet needs: bytes by tier, partitions, nodes and bandwidth, from measured sizes and named assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from math import ceil
from typing import Any

from angelia.envelope.ids import BUCKETS
from angelia.errors import InvalidArgument
from angelia.pipeline.jobs.job_context import Work
from angelia.pipeline.lake.listing import size
from angelia.pipeline.lake.tables import RECEIPTS
from angelia.pipeline.simulation.fleet import are_numbers

_DAY = 86_400
_OPTION = "capacity_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The fleet that is asked about. As options of `simulate`, each name begins with `capacity_`."""

    agents: int = 1_000_000
    messages_per_second: float = 1_000_000.0
    mean_wire_bytes: float = 6_000.0
    ttl_share: float = 0.003  # of all messages, wait until they expire
    ttl_days: float = 7.0
    settled_seconds: float = 60.0  # how long all others are in the ledger
    signed_share: float = 0.98  # of all receipts, are signed by the recipient
    receipt_days: float = 30.0  # in the ledger
    archive_years: float = 7.0

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Load:
        given = {one.name: options.get(_OPTION + one.name) for one in fields(cls)}
        made = cls(**{name: value for name, value in given.items() if value is not None})
        for name, value in asdict(made).items():
            if not are_numbers(value) or value < 0 or (name.endswith("_share") and value > 1):
                raise InvalidArgument(f"{_OPTION}{name} cannot be {value}", hint="angelia pipeline run simulate --help")
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one thing in one tier. What is not measured in the run is the constant that is named here."""

    archived_receipt: float  # Parquet, measured in the lake; without its signature
    signed_receipt: int = 3_500  # Ed25519 64, ML-DSA-65 3,309, ids and handles; random bytes, which do not compress
    ledger_receipt: int = 640  # a row of delivery_receipts and its seven index entries, measured; unsigned
    ledger_envelope: int = 950  # a row of envelopes and its index entries, measured; without the envelope
    hot_envelope: int = 400  # queue entry and bookkeeping in the hot tier; without its copy of the bytes
    hot_agent: int = 8_000  # cached bundle, rate limits, windows
    ledger_agent: int = 1_300_000  # a year of bundles, one every three days, and 100 one-time keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """What one node of each kind is assumed to carry."""

    ledger_messages_per_second: int = 20_000  # accepted, settled and audited, by group commit on NVMe
    ledger_bytes: float = 8e12
    hot_bytes: float = 48e9  # of 64 GB, the rest is fragmentation and forks
    api_messages_per_second: int = 2_000  # of one process: signatures, policy, HTTP
    link_bits_per_second: float = 10e9
    copies: int = 2  # of the ledger and the hot tier: a primary and a standby


def capacity(work: Work) -> dict[str, Any]:
    """For the fleet of the job's options, with the bytes of a receipt as the lake has them now."""
    measured = size(work.objects, RECEIPTS)
    if not measured.rows:
        return {}
    return needed(Load.of(work.options), Sizes(archived_receipt=measured.bytes / measured.rows), Nodes())


def needed(load: Load, sizes: Sizes, nodes: Nodes) -> dict[str, Any]:
    """The arithmetic. Every figure is in bytes, messages or nodes, and every assumption is given back beside it."""
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
        "archive_bytes": round(archived * (sizes.archived_receipt + signed)),
        "archive_bytes_unsigned": round(archived * sizes.archived_receipt),
        "buckets": BUCKETS,
        "messages_per_second_a_bucket": round(rate / BUCKETS, 1),
        "ledger_day_partitions": ceil(load.receipt_days) + 8,  # and a week made ahead
        "ledger_nodes": nodes.copies * ledger_nodes,
        "hot_nodes": nodes.copies * ceil(hot / nodes.hot_bytes),
        "api_processes": ceil(rate / nodes.api_messages_per_second),
        "bandwidth_bits_per_second": round(2 * 8 * wire),  # in and out again
        "links": ceil(2 * 8 * wire / nodes.link_bits_per_second),
        "load": asdict(load),
        "sizes": asdict(sizes),
        "nodes": asdict(nodes),
    }
