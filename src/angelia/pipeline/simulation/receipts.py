"""Receipts of a simulated fleet, by Spark's own expressions: each row is a function of the seed and its number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from angelia.pipeline.lake.tables import DAY, RECEIPTS
from angelia.pipeline.simulation.fleet import Fleet, cumulative

_EPOCH = date(1970, 1, 1)
_SECOND = 1_000_000  # all times are microseconds until they are written
_TTL = 7 * 86_400 * _SECOND
_SEALED = 4_630  # what sealing and signing add to a message, in bytes
_LARGEST = 1_048_576
_POINTS = 192  # of the curve of a day
_TASK_ROWS = 50_000  # smaller tasks are not worth their start
_DAY_TASK_ROWS = 2_000_000
_CHANNELS = 32
_REASONS = ("simulated: rejected by the recipient", "simulated: too many attempts", "simulated: key revoked")


def receipts(spark: SparkSession, fleet: Fleet, days: Sequence[date]) -> DataFrame:
    """Receipts of neighbouring days. A task writes whole days, or a large day is split into tasks, so that there are
    few files.

    Every day has as many row numbers as the largest; those beyond its own count are filtered out."""
    counts = [fleet.messages(day) for day in days]
    split = -(-max(counts) // _DAY_TASK_ROWS)
    room = split * -(-max(counts) // split)
    together = max(1, _TASK_ROWS // room)
    tasks = -(-len(days) // together)
    counts += [0] * (tasks * together - len(days))
    first = (days[0] - _EPOCH).days
    rows = spark.range(0, tasks * together * room, 1, tasks * split)
    index = f.expr(f"cast(id div {room} as int)")
    rows = rows.select((index + first).alias("epoch_day"), f.expr(f"id % {room}").alias("number"))
    rows = rows.where(f.col("number") < f.element_at(f.lit(counts), f.col("epoch_day") - first + 1))
    return _named(_times(_drawn(rows, fleet), fleet))


def handle(number: Column) -> Column:
    return f.concat(f.lit("sim-"), f.lpad(number.cast("string"), 6, "0"))


def _drawn(rows: DataFrame, fleet: Fleet) -> DataFrame:
    """The random properties of each message."""
    sender = _ranked(_chance("sender", fleet), fleet)
    to = _ranked(_chance("recipient", fleet), fleet)
    # Busy recipients are not the busy senders: ranks become agents in another order.
    shuffled = (to * _coprime(fleet.agents) + fleet.agents // 3) % fleet.agents
    recipient = f.when(shuffled == sender, (shuffled + 1) % fleet.agents).otherwise(shuffled)
    size = f.lit(fleet.sizes[0]) * f.exp(_normal("size", fleet) * fleet.sizes[1])
    delivered_from = fleet.failure_share + fleet.expiry_share
    outcome = _chance("outcome", fleet)
    status = f.when(outcome < fleet.failure_share, "failed").when(outcome < delivered_from, "expired")
    return rows.select(
        "epoch_day",
        "number",
        sender.alias("sender"),
        recipient.alias("recipient"),
        _step(_chance("priority", fleet), cumulative(fleet.priorities)).cast("short").alias("priority"),
        f.least(f.lit(float(_LARGEST)), size + _SEALED).cast("int").alias("wire_bytes"),
        status.otherwise("delivered").alias("status"),
        (_step(_chance("attempts", fleet), cumulative(fleet.attempts)) + 1).alias("needed"),
        f.exp(_normal("delay", fleet) * fleet.delay_sigma).alias("slowness"),
        _chance("time", fleet).alias("time"),
        _chance("way", fleet).alias("way"),
        _chance("acknowledged", fleet).alias("acknowledged"),
        _chance("channel", fleet).alias("channel"),
        *(_bits(name, fleet).alias(name) for name in ("id_1", "id_2", "id_3", "id_4")),
    )


def _times(rows: DataFrame, fleet: Fleet) -> DataFrame:
    """The times of each message."""
    curve = f.lit(fleet.times_of_day(_POINTS))
    place = f.col("time") * _POINTS
    point = place.cast("int")
    before, after = f.element_at(curve, point + 1), f.element_at(curve, point + 2)
    second = before + (after - before) * (place - point)
    median = f.element_at(f.lit([1000 * one for one in fleet.delays]), f.col("priority").cast("int") + 1)
    delay = f.least(median * f.col("slowness"), f.lit(_TTL / 2.0))
    midnight = f.col("epoch_day").cast("long") * (86_400 * _SECOND)
    sent = midnight + f.least(second * _SECOND, f.lit(86_400.0 * _SECOND - 1)).cast("long")
    rows = rows.withColumn("sent", sent)
    rows = rows.withColumn("accepted", f.col("sent") + 1_000 + (f.col("way") * 20_000).cast("long"))
    came, failed = f.col("status") == "delivered", f.col("status") == "failed"
    rows = rows.withColumn("ended", f.col("accepted") + 1 + delay.cast("long"))
    thanks = f.col("ended") + 2_000 + (f.col("way") * 250_000).cast("long")
    acknowledged = f.when(came & (f.col("acknowledged") < 0.98), thanks)
    attempts = f.when(came, f.col("needed")).when(failed, f.lit(5)).otherwise(f.lit(0))
    return rows.select(
        "*",
        f.when(came, f.col("ended")).alias("delivered"),
        f.when(came | failed, f.col("ended")).alias("last_attempt"),
        acknowledged.alias("acknowledged_time"),
        attempts.alias("delivery_attempts"),
    )


def _named(rows: DataFrame) -> DataFrame:
    """The columns of the archive's own table, in their order."""
    recipient = handle(f.col("recipient"))
    failed = f.col("status") == "failed"
    reason = f.element_at(f.lit(list(_REASONS)), f.pmod(f.col("id_1"), f.lit(len(_REASONS))).cast("int") + 1)
    channel = f.md5(f.floor(f.col("channel") * (10 * _CHANNELS)).cast("string"))
    made = {
        "receipt_id": _uuid(f.col("id_1"), f.col("id_2")),
        "message_id": _uuid(f.col("id_3"), f.col("id_4")),
        "replay_key": f.sha2(f.concat_ws(" ", f.col("id_1"), f.col("id_3")), 256),
        "sender_nhi": handle(f.col("sender")),
        "recipient_nhi": recipient,
        "channel_id": f.when(f.col("channel") < 0.1, _dashed(channel)),
        "attested_by": f.when(f.col("acknowledged_time").isNotNull(), "recipient").otherwise("relay"),
        "last_attempt_at": f.timestamp_micros("last_attempt"),
        "sent_at": f.timestamp_micros("sent"),
        "accepted_at": f.timestamp_micros("accepted"),
        "expires_at": f.timestamp_micros(f.col("sent") + _TTL),
        "delivered_at": f.timestamp_micros("delivered"),
        "acknowledged_at": f.timestamp_micros("acknowledged_time"),
        "read_at": f.lit(None).cast("timestamp"),
        "failure_reason": f.when(failed, reason),
        "receipt_wire": f.lit(None).cast("binary"),
        "bucket": f.conv(f.substring(f.sha2(recipient, 256), 1, 2), 16, 10).cast("short"),
        DAY: f.date_from_unix_date(f.col("epoch_day")),
    }
    return rows.select(*(made.get(name, f.col(name)).alias(name) for name in RECEIPTS.schema.names))


def _bits(stream: str, fleet: Fleet) -> Column:
    """64 bits that this row has in this stream, and in no other."""
    return f.xxhash64(f.lit(fleet.seed), f.lit(stream), f.col("epoch_day"), f.col("number"))


def _chance(stream: str, fleet: Fleet) -> Column:
    """A random number from 0, less than 1: the 53 bits that a double holds."""
    return f.shiftrightunsigned(_bits(stream, fleet), 11) * 2.0**-53


def _normal(stream: str, fleet: Fleet) -> Column:
    """Normally distributed, by Box and Muller."""
    radius = f.sqrt(-2 * f.log(1 - _chance(f"{stream} radius", fleet)))
    return radius * f.cos(2 * math.pi * _chance(f"{stream} angle", fleet))


def _ranked(chance: Column, fleet: Fleet) -> Column:
    """A rank from 0, of which the first come most often: Zipf's law, continuous, with the exponent `skew`."""
    drawn = chance if fleet.skew == 0 else f.pow(chance, 1 / (1 - fleet.skew))
    return (drawn * fleet.agents).cast("long")


def _step(chance: Column, bounds: Sequence[float]) -> Column:
    """The number of bounds that are reached."""
    passed = f.lit(0)
    for bound in bounds:
        passed = passed + (chance >= bound).cast("int")
    return passed


def _uuid(high: Column, low: Column) -> Column:
    return _dashed(f.concat(f.lpad(f.hex(high), 16, "0"), f.lpad(f.hex(low), 16, "0")))


def _dashed(digits: Column) -> Column:
    """32 hexadecimal digits as a UUID of version 4."""
    parts = [
        f.substring(digits, 1, 8),
        f.substring(digits, 9, 4),
        f.concat(f.lit("4"), f.substring(digits, 14, 3)),
        f.concat(f.lit("a"), f.substring(digits, 18, 3)),
        f.substring(digits, 21, 12),
    ]
    return f.lower(f.concat_ws("-", *parts))


def _coprime(agents: int) -> int:
    """A factor that is coprime to the number of agents, so that multiplication permutes them."""
    factor = int(agents * 0.618) | 1
    while math.gcd(factor, agents) != 1:
        factor += 2
    return factor
