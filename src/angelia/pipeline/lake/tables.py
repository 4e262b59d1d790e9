"""The tables of the archive: their documented columns, in partitions by the day of the data. `dictionary` makes
docs/tables from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

DAY = "day"
_TIME = pa.timestamp("us", tz="UTC")
_COUNT = pa.int64()
SIMULATED = "simulated"  # the column that every row of a simulated archive has
SIMULATED_PROPERTY = "angelia.simulated"  # and the property of its tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveColumn:
    """A column and its meaning."""

    name: str
    type: pa.DataType
    about: str
    nullable: bool = True
    unique: bool = False  # values hardly repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the archive, in partitions by the day of its data."""

    name: str
    about: str
    id: str
    columns: tuple[ArchiveColumn, ...]
    found_by: tuple[str, ...] = ()  # other columns that the ledger needs to find a row quickly
    ordered: str | None = None  # a column whose smallest and largest value in each file the log keeps
    configuration: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> pa.Schema:
        """The schema with the day, which is in the paths of the files and not in the files."""
        fields = [pa.field(one.name, one.type, one.nullable) for one in self.columns]
        return pa.schema([*fields, pa.field(DAY, pa.date32(), False)])

    @property
    def file_schema(self) -> pa.Schema:
        return self.schema.remove(self.schema.get_field_index(DAY))

    @property
    def simulated(self) -> bool:
        return SIMULATED_PROPERTY in self.configuration

    def marked(self) -> Table:
        """The table as a simulated archive has it: marked in its properties, its description and every row."""
        return replace(
            self,
            about=f"Simulated, none of this happened. {self.about}",
            columns=(*self.columns, always(SIMULATED, pa.bool_(), "true: this never happened")),
            configuration={**self.configuration, SIMULATED_PROPERTY: "true"},
        )

    @property
    def repeating(self) -> list[str]:
        """Text columns that are worth a dictionary."""
        return [one.name for one in self.columns if one.type == pa.string() and not one.unique]

    @property
    def counting(self) -> list[str]:
        """Columns of numbers and times, which are stored as differences: half the bytes and the work of a
        dictionary."""
        return [one.name for one in self.columns if pa.types.is_integer(one.type) or pa.types.is_timestamp(one.type)]


def column(name: str, type: pa.DataType, about: str, *, unique: bool = False) -> ArchiveColumn:
    """A column that may be empty."""
    return ArchiveColumn(name=name, type=type, about=about, unique=unique)


def always(name: str, type: pa.DataType, about: str, *, unique: bool = False) -> ArchiveColumn:
    """A column that every row has."""
    return ArchiveColumn(name=name, type=type, about=about, nullable=False, unique=unique)


RECEIPTS = Table(
    name="delivery_receipts",
    about="What became of each message: one row a message, after it left the ledger.",
    id="receipt_id",
    columns=(
        always("receipt_id", pa.string(), "the receipt's own id, a UUID", unique=True),
        always("message_id", pa.string(), "the id that the sender gave the message, a UUID", unique=True),
        always("replay_key", pa.string(), "SHA-256 of the envelope, in hex", unique=True),
        always("sender_nhi", pa.string(), "handle of the sender"),
        always("recipient_nhi", pa.string(), "handle of the recipient"),
        column("channel_id", pa.string(), "the channel that the message is about, a UUID"),
        always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        always("wire_bytes", pa.int32(), "size of the envelope"),
        always("status", pa.string(), "pending, delivered, expired or failed"),
        always("attested_by", pa.string(), "whose word the status is: relay or recipient"),
        always("delivery_attempts", pa.int32(), "how often it was handed out"),
        column("last_attempt_at", _TIME, "when it was handed out last"),
        always("sent_at", _TIME, "when the sender made it; its day is the partition"),
        always("accepted_at", _TIME, "when the relay took it"),
        always("expires_at", _TIME, "when it would have expired"),
        column("delivered_at", _TIME, "when the recipient was first handed it"),
        column("acknowledged_at", _TIME, "when the recipient said that it has it"),
        column("read_at", _TIME, "when the recipient said that it was read"),
        column("failure_reason", pa.string(), "why it failed"),
        column("receipt_wire", pa.binary(), "the recipient's signed receipt"),
        always("bucket", pa.int16(), "0 to 255, by hash of the recipient"),
    ),
)

AUDIT = Table(
    name="audit_events",
    about="Everything that happened, in the order of the chain. Rows are added, and changed by an erasure alone.",
    id="event_id",
    ordered="position",
    columns=(
        always("position", pa.int64(), "place in the chain, from 1 without a gap"),
        always("event_id", pa.string(), "the event's own id, a UUID", unique=True),
        always("occurred_at", _TIME, "when it happened; its day is the partition"),
        always("event_type", pa.string(), "what happened"),
        column("actor_nhi", pa.string(), "handle of the actor"),
        column("object_nhi", pa.string(), "handle of whom or what it was done to"),
        column("message_id", pa.string(), "the message that it is about, a UUID", unique=True),
        column("replay_key", pa.string(), "SHA-256 of the message's envelope, in hex", unique=True),
        column("detail", pa.string(), "more about it, as JSON", unique=True),
        always("event_hash", pa.binary(), "SHA-256 of the event"),
        always("entry_hash", pa.binary(), "SHA-256 over the entry before, the position and the event's hash"),
        column("redacted_at", _TIME, "when personal columns were emptied on a legal request"),
    ),
    configuration={"delta.appendOnly": "true"},
)

SESSIONS = Table(
    name="sessions",
    about="Rotation schedules of pairs of agents that were unused for 90 days. What was encrypted in them is not kept: "
    "neither the state nor the list of keys in grace, which had all run out.",
    id="session_id",
    columns=(
        always("session_id", pa.string(), "the schedule's own id, a UUID", unique=True),
        always("agent_a_nhi", pa.string(), "handle of the one of the two that comes first"),
        always("agent_b_nhi", pa.string(), "handle of the other"),
        always("current_key_id", pa.string(), "the key that the pair used last, a UUID"),
        always("current_key_version", pa.int32(), "how many keys it has had"),
        always("rotation_policy", pa.string(), "hourly, daily, weekly or on_demand"),
        column("rotation_interval_secs", pa.int32(), "seconds between rotations; none on demand"),
        always("last_rotated_at", _TIME, "when a new key was last reported"),
        column("next_rotation_at", _TIME, "when the next one would have been announced"),
        column("due_since", _TIME, "since when an announced rotation was not answered"),
        always("last_used_at", _TIME, "when either of the two last changed or used it; its day is the partition"),
        always("created_at", _TIME, "when it was made"),
        always("updated_at", _TIME, "when it last changed"),
        always("bucket", pa.int16(), "0 to 255, by hash of the first agent"),
    ),
)

ROOMS = Table(
    name="rooms",
    about="Messages of rooms whose creator wants them archived, after they expired.",
    id="message_id",
    found_by=("room_id", "ts"),
    columns=(
        always("room_id", pa.string(), "the room, a UUID"),
        column("room_name", pa.string(), "its name; none for a private room"),
        always("is_private", pa.bool_(), "whether the room is read and written with a key"),
        always("message_id", pa.string(), "the message's own id, a ULID", unique=True),
        always("ts", pa.int64(), "when it was posted, in Unix milliseconds; its day is the partition"),
        always("author", pa.string(), "id of the agent that posted it, a UUID"),
        always("body", pa.string(), "the text", unique=True),
        column("parent_id", pa.string(), "the message that it answers, a ULID", unique=True),
        always("depth", pa.int32(), "how many messages it answers, one after the other; 0 if none"),
        column("proof", pa.string(), "the author's signature and what it covers, as JSON", unique=True),
    ),
)

_PLACE = (
    always("queue_id", pa.string(), "the queue, a UUID"),
    always("queue", pa.string(), "its name"),
    always("partition_id", pa.string(), "the partition, a UUID"),
    always("partition", pa.string(), "its name"),
)
_CONTENT = (
    always("transaction_id", pa.string(), "the id that the producer gave the message", unique=True),
    column("trace_id", pa.string(), "the producer's id for what it belongs to", unique=True),
    column("producer", pa.string(), "who pushed it: the handle of an agent, or the subject of a token"),
    column("key_id", pa.string(), "the data key that encrypts the payload, a UUID; none: it is plain"),
    always("payload", pa.binary(), "the payload as it was stored: JSON; encrypted: nonce, ciphertext and tag"),
)

QUEUE_MESSAGES = Table(
    name="queue_messages",
    about="Messages of queues that are archived, after their retention.",
    id="message_id",
    found_by=("partition_id", "position"),
    columns=(
        *_PLACE,
        always("position", pa.int64(), "place of the message in its partition, from 0"),
        always("message_id", pa.string(), "the message's own id, a UUID", unique=True),
        *_CONTENT,
        always("created_at", _TIME, "when it was pushed; its day is the partition of the table"),
        always(
            "ended",
            pa.string(),
            "how it ended: `completed` by every consumer group, `dead` (there is a dead letter of it), `evicted` after "
            "too long a wait, or `expired`: its retention was over first",
        ),
    ),
)

QUEUE_DEAD_LETTERS = Table(
    name="queue_dead_letters",
    about="Dead letters of queues that are archived, after their retention: one row for each consumer group.",
    id="letter_id",
    columns=(
        always("letter_id", pa.string(), "number of the dead letter", unique=True),
        *_PLACE,
        column("consumer_group", pa.string(), "the group that gave it up; none if that was deleted"),
        always("position", pa.int64(), "place of the message in its partition, from 0"),
        always("message_id", pa.string(), "the message's own id, a UUID", unique=True),
        *_CONTENT,
        always("error", pa.string(), "why the work on it failed"),
        always("attempts", pa.int32(), "how often it had failed before"),
        always("created_at", _TIME, "when the message was pushed"),
        always("failed_at", _TIME, "when it became a dead letter; its day is the partition of the table"),
    ),
)

HOURS = Table(
    name="receipt_hours",
    about="Receipts by the hour that they were sent in and by priority.",
    id="hour",
    columns=(
        always("hour", pa.int16(), "hour of the day, UTC"),
        always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        always("sent", _COUNT, "messages"),
        always("delivered", _COUNT, "of these, delivered"),
        always("expired", _COUNT, "of these, expired"),
        always("failed", _COUNT, "of these, failed"),
        always("pending", _COUNT, "of these, neither yet"),
        always("attempts", _COUNT, "how often they were handed out, together"),
        always("wire_bytes", _COUNT, "size of their envelopes, together"),
    ),
)

LATENCIES = Table(
    name="receipt_latencies",
    about="How long delivered messages took, from accepted to delivered, by day and priority.",
    id="priority",
    columns=(
        always("priority", pa.int16(), "0 low, 1 normal, 2 high, 3 critical"),
        always("p50_ms", pa.float64(), "half of them came within so many milliseconds; at most 0.5 % off"),
        always("p95_ms", pa.float64(), "95 % of them did"),
        always("p99_ms", pa.float64(), "99 % of them did"),
        always("buckets", pa.list_(pa.int16()), "bucket b is 1.01^b up to 1.01^(b+1) microseconds"),
        always("counts", pa.list_(pa.int64()), "messages of each of these buckets"),
    ),
)

AGENTS = Table(
    name="receipt_agents",
    about="What each agent sent and received on a day.",
    id="agent",
    columns=(
        always("agent", pa.string(), "handle"),
        always("sent", _COUNT, "messages that it sent"),
        always("sent_bytes", _COUNT, "size of these"),
        always("delivered", _COUNT, "of these, delivered"),
        always("expired", _COUNT, "of these, expired"),
        always("failed", _COUNT, "of these, failed"),
        always("received", _COUNT, "messages that were sent to it, whatever became of them"),
        always("received_bytes", _COUNT, "size of these"),
    ),
)

BUCKETS = Table(
    name="receipt_buckets",
    about="How the load of a day spread over the 256 buckets.",
    id="bucket",
    columns=(
        always("bucket", pa.int16(), "0 to 255, by hash of the recipient"),
        always("receipts", _COUNT, "messages"),
        always("wire_bytes", _COUNT, "size of these"),
    ),
)

DAYS = Table(
    name="analytics_days",
    about="What analytics computed of each day, and from what: a day is computed again when its fingerprint changes.",
    id="fingerprint",
    columns=(
        always("fingerprint", pa.string(), "SHA-256 over what the day was computed from"),
        always("computed_at", _TIME, "when it was computed"),
        always("receipts", _COUNT, "messages of the day"),
        always("senders", _COUNT, "different agents that sent"),
        always("recipients", _COUNT, "different agents that were sent to"),
        column("bucket_peak", pa.float64(), "messages of the fullest bucket, divided by the mean of all 256"),
        column("bucket_gini", pa.float64(), "0 when all buckets are equally full, near 1 when one has everything"),
    ),
)

KEY_DAYS = Table(
    name="key_days",
    about="Rotations of keys, by day, reason and type.",
    id="reason",
    columns=(
        always("reason", pa.string(), "scheduled, on_demand, emergency or revoked"),
        always("key_type", pa.string(), "ml_kem_768, ed25519, ml_dsa_65, x25519 or xwing"),
        always("rotations", _COUNT, "keys that were replaced or revoked"),
        always("agents", _COUNT, "different agents whose keys these were"),
    ),
)

KEY_GRACE = Table(
    name="key_grace",
    about="Keys in their grace period, each time that it was measured.",
    id="key_type",
    columns=(
        always("measured_at", _TIME, "when it was measured; its day is the partition"),
        always("key_type", pa.string(), "type of the keys"),
        always("keys", _COUNT, "keys in their grace period"),
        always("oldest_seconds", _COUNT, "how long the oldest has been in it"),
        always("mean_seconds", _COUNT, "how long they have been in it, in the mean"),
    ),
)

ROOM_DAYS = Table(
    name="room_days",
    about="What happened in rooms on each day, private ones included.",
    id="computed_at",
    columns=(
        always("computed_at", _TIME, "when it was counted"),
        always("messages", _COUNT, "messages that were posted"),
        always("private_messages", _COUNT, "of these, in private rooms"),
        always("replies", _COUNT, "of all, those that answer another"),
        always("agents", _COUNT, "different agents that posted"),
        always("rooms", _COUNT, "rooms that had messages"),
        column(
            "depth_mean", pa.float64(), "how deep replies were nested, in the mean; 1 answers a message that is none"
        ),
        column("depth_max", pa.int32(), "how deep the deepest was"),
        always("rooms_made", _COUNT, "rooms that agents made here: not those that were imported"),
    ),
)

TOP_ROOMS = Table(
    name="top_rooms",
    about="The hundred public rooms with the most messages of each day; all private ones are one row.",
    id="room_id",
    columns=(
        always("room_id", pa.string(), "the room, a UUID; `private` for all private rooms together"),
        column("room_name", pa.string(), "its name"),
        always("messages", _COUNT, "messages that were posted"),
        always("replies", _COUNT, "of these, those that answer another"),
        always("agents", _COUNT, "different agents that posted"),
    ),
)

_WAITS = "in classes: up to 0.01, 0.05, 0.25, 1, 5, 30, 120, 600, 3,600 and 86,400 seconds, and longer"

QUEUE_HOURS = Table(
    name="queue_hours",
    about="What happened in all queues in each hour. Percentiles are estimated within the classes of waiting times.",
    id="hour",
    columns=(
        always("hour", pa.int16(), "hour of the day, UTC"),
        always("queues", _COUNT, "queues in which something happened"),
        always("pushed", _COUNT, "messages that were pushed"),
        always("pushed_bytes", _COUNT, "size of these, with 100 bytes for each beside its payload"),
        always("popped", _COUNT, "deliveries to consumers"),
        always("completed", _COUNT, "messages that consumer groups completed"),
        always("failed", _COUNT, "deliveries that failed"),
        always("dead", _COUNT, "messages that became dead letters"),
        always("evicted", _COUNT, "messages that waited too long"),
        column("eviction_rate", pa.float64(), "evicted messages, divided by those that were pushed"),
        column("wait_p50_ms", pa.float64(), "half of the deliveries came within so many milliseconds after the push"),
        column("wait_p95_ms", pa.float64(), "95 % of them did"),
        column("wait_p99_ms", pa.float64(), "99 % of them did"),
        always("wait_max_ms", _COUNT, "the longest that a delivered message had waited"),
        always("waits", pa.list_(pa.int64()), f"deliveries by the time since the push, {_WAITS}"),
        column(
            "evicted_p50_ms", pa.float64(), "half of the evicted messages had waited for at most so many milliseconds"
        ),
        column("evicted_p95_ms", pa.float64(), "95 % of them had"),
        column("evicted_p99_ms", pa.float64(), "99 % of them had"),
        always(
            "evicted_waits", pa.list_(pa.int64()), "evicted messages by the time since the push, in the same classes"
        ),
        always("stored", _COUNT, "messages of this hour that were still there when it was counted"),
        always("encrypted", _COUNT, "of these, with an encrypted payload"),
    ),
)

QUEUE_DAYS = Table(
    name="queue_days",
    about="What retention removed from queues on each day, and how many of the queues are encrypted.",
    id="computed_at",
    columns=(
        always("computed_at", _TIME, "when it was counted"),
        always("events", _COUNT, "all that was counted of the day, together; it is counted again if there is more"),
        always("queues", _COUNT, "queues in which something happened"),
        always("all_queues", _COUNT, "queues that there were when it was counted"),
        always("encrypted_queues", _COUNT, "of these, those that encrypted new messages"),
        always("removed_expired", _COUNT, "messages that were removed by their age"),
        always("removed_completed", _COUNT, "messages that were removed after every consumer group had consumed them"),
        always("removed_dead_letters", _COUNT, "dead letters that were removed"),
        always("removed_partitions", _COUNT, "empty partitions that were removed"),
        always(
            "reclaimed_bytes",
            _COUNT,
            "size of the removed messages and dead letters, estimated: of pushed messages the mean",
        ),
    ),
)

TOP_QUEUES = Table(
    name="top_queues",
    about="The hundred queues with the most messages of each day.",
    id="queue_no",
    columns=(
        always("queue_no", _COUNT, "number of the queue"),
        column("queue", pa.string(), "its name; none if it was deleted"),
        always("pushed", _COUNT, "messages that were pushed"),
        always("popped", _COUNT, "deliveries to consumers"),
        always("completed", _COUNT, "messages that consumer groups completed"),
        always("failed", _COUNT, "deliveries that failed"),
        always("dead", _COUNT, "messages that became dead letters"),
        always("evicted", _COUNT, "messages that waited too long"),
        column("wait_p95_ms", pa.float64(), "95 % of the deliveries came within so many milliseconds after the push"),
        always("stored", _COUNT, "messages of this day that were still there when it was counted"),
        always("encrypted", _COUNT, "of these, with an encrypted payload"),
    ),
)

STORAGE = Table(
    name="storage",
    about="How large each store is, each time that it was measured.",
    id="name",
    columns=(
        always("measured_at", _TIME, "when it was measured; its day is the partition"),
        always("tier", pa.string(), "hot, ledger or archive"),
        always("name", pa.string(), "the table; of the hot tier, its memory"),
        column("row_count", _COUNT, "rows; of the ledger as its planner estimates them"),
        column("files", _COUNT, "files that count"),
        always("bytes", _COUNT, "size, with indexes"),
    ),
)

LOG_GROUPS = Table(
    name="log_groups",
    about="What a check of exported group logs found of each group, each time that it was checked.",
    id="group_id",
    columns=(
        always("checked_at", _TIME, "when it was checked; its day is the partition"),
        always("group_id", pa.string(), "the group, in base58"),
        always("nodes", _COUNT, "nodes whose exports were checked"),
        always("messages", _COUNT, "different messages of level 0"),
        always("copies", _COUNT, "sound copies of these on all nodes, together"),
        always("snapshots", _COUNT, "different messages of level 1 and above"),
        always("stored_bytes", _COUNT, "size of all records on all nodes"),
        always("snapshot_bytes", _COUNT, "of these, of level 1 and above"),
        always("sharded", _COUNT, "snapshots that are stored in shards, by their manifests"),
        always("shard_bytes", _COUNT, "size of their shards on all nodes, as they are stored, with manifests"),
        always(
            "sharded_bytes", _COUNT, "size of these snapshots themselves, each once; up to 31 bytes too much for each"
        ),
        always("holes", _COUNT, "seqs that no node has, between messages of level 0 of the same sender"),
        always("conflicts", _COUNT, "contradictions between nodes about one message"),
        always("duplicates", _COUNT, "records too many: of a message in one node's export, of a shard on other nodes"),
        always("missing_shards", _COUNT, "shards that no node has, of snapshots that can still be read"),
        always("lost_snapshots", _COUNT, "snapshots of which there are too few shards to read them"),
        always("corrupt_records", _COUNT, "records that a node can no longer read"),
        always("thin_copies", _COUNT, "messages of level 0 with one sound copy, though there are several nodes"),
    ),
)

LOG_NODES = Table(
    name="log_nodes",
    about="What each node stored of each group, each time that its export was checked.",
    id="node_id",
    columns=(
        always("checked_at", _TIME, "when it was checked; its day is the partition"),
        always("group_id", pa.string(), "the group, in base58"),
        always("node_id", pa.string(), "the node's public key, in base64url"),
        always("row_count", _COUNT, "records"),
        always("bytes", _COUNT, "size of these"),
        always("snapshot_bytes", _COUNT, "of these, of level 1 and above"),
        always("whole", _COUNT, "records of whole messages"),
        always("shards", _COUNT, "records of shards"),
        always("damaged", _COUNT, "records that the node can no longer read; their level is not known"),
        always("levels", pa.list_(pa.int64()), "sound records by level, from 0 to 15"),
    ),
)

LOG_FINDINGS = Table(
    name="log_findings",
    about="The first thousand findings of each kind, of each check of exported group logs.",
    id="kind",
    columns=(
        always("checked_at", _TIME, "when it was checked; its day is the partition"),
        always("group_id", pa.string(), "the group, in base58"),
        always("kind", pa.string(), "hole, conflict, duplicate, missing_shard, lost, corrupt or thin_copy"),
        always("sender", pa.string(), "sender id of the message, in hex"),
        always("seq", pa.int64(), "its seq; of a hole the first that is missing"),
        always("last_seq", pa.int64(), "the same; of a hole the last that is missing"),
        always("number", _COUNT, "how many seqs, shards or records it is about"),
        always(
            "nodes",
            pa.list_(pa.string()),
            "the nodes that have records of it; of a corrupt one those that cannot read it",
        ),
        column("detail", pa.string(), "more about it"),
    ),
)

# The tables that `verify logs` writes, this one last: a check without its groups was never finished.
LOG_CHECKS = (LOG_FINDINGS, LOG_NODES, LOG_GROUPS)

# The tables that analytics writes. Those of receipts and keys can be computed again; all others are as they were.
ANALYTICS = (
    HOURS,
    LATENCIES,
    AGENTS,
    BUCKETS,
    DAYS,
    KEY_DAYS,
    KEY_GRACE,
    ROOM_DAYS,
    TOP_ROOMS,
    QUEUE_HOURS,
    QUEUE_DAYS,
    TOP_QUEUES,
    STORAGE,
)
TABLES = {
    table.name: table
    for table in (RECEIPTS, AUDIT, SESSIONS, ROOMS, QUEUE_MESSAGES, QUEUE_DEAD_LETTERS, *ANALYTICS, *LOG_CHECKS)
}
