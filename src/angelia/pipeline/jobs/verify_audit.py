"""Verifies the archived audit: every event, the chain over them, and the node's signatures."""

from __future__ import annotations

import functools
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from angelia.audit.model import Floor
from angelia.envelope.ids import KeyType, key_id
from angelia.errors import AngeliaError, AuditBroken
from angelia.pipeline import chain_verification, runs
from angelia.pipeline.chain_verification import ChainResult, NodePublicKey
from angelia.pipeline.database import Database
from angelia.pipeline.jobs.job_context import JobContext, JobReport
from angelia.pipeline.lake import simulated
from angelia.pipeline.lake.audit_chain import archive_floor
from angelia.pipeline.sources import audit
from angelia.runs.model import RunState

JOB = "verify audit"
_SEED_BYTES = 32


class NodeKeyUnreadable(AngeliaError, code="node_key_unreadable"):
    """The node key cannot be read"""


def verify_audit(work: JobContext) -> JobReport:
    """Checks all of it, in parallel; raises AuditBroken with the first fault."""
    report = JobReport(job=JOB)
    simulated.only_real(work.objects, work.settings, JOB)
    with runs.one_run(work.database_url, JOB, work.clock) as (database, run):
        floor, last = archive_floor(work.objects), audit.archived_to(work.objects)
        node = node_key(work.settings.data_dir)
        work.progress.stage("verifying", last)
        result = _verified(work, database, floor, last, node)
        warning = _unsigned(result, node)
        report.figures = _figures(result) | ({"warning": warning} if warning else {})
        broken = _broken(result, floor)
        said = report.figures if broken is None else {"error": broken.message, **report.figures}
        state = RunState.DONE if broken is None else RunState.FAILED
        run = runs.advance(database, run, state, work.clock(), row_count=result.rows, report=said)
        report.add(run)
    if broken is not None:
        # Outside of the run, which would overwrite its report with the error.
        broken.members = report.figures
        raise broken
    report.summary = f"{result.rows:,} entries sound, {result.checkpoints:,} checkpoints, {result.redacted:,} redacted"
    if warning:
        report.summary += f"; {warning}"
    return report


def _verified(work: JobContext, database: Database, floor: Floor, last: int, node: NodePublicKey | None) -> ChainResult:
    if last <= floor.position:
        return ChainResult()
    signed = functools.partial(database.table, work.sql("audit")["checkpoints"])
    result = chain_verification.verify(work.spark, work.objects, floor, last, signed, node)
    if result.redacted:
        # The archive may not have the events of these erasures yet.
        times = result.redactions.times
        erasures = database.rows(work.sql("audit")["erasures"], min(times), max(times))
        recorded = {row["occurred_at"] for row in erasures}
        result.faults += chain_verification.unexplained(work.spark, work.objects, result.redactions, recorded)
        result.faults.sort(key=lambda fault: fault.position)
        del result.faults[chain_verification.MOST_FAULTS :]
    return result


def _figures(result: ChainResult) -> dict[str, object]:
    return {
        "sealed": result.last,
        "redacted": result.redacted,
        "redacted_positions": result.redactions.positions,
        "checkpoints": result.checkpoints,
        "foreign_checkpoints": result.foreign,
        "broken": [{"position": fault.position, "what": fault.what} for fault in result.faults],
    }


def _unsigned(result: ChainResult, node: NodePublicKey | None) -> str | None:
    """A warning if there are signatures, and none could be checked."""
    if result.checkpoints or not result.foreign:
        return None
    why = "there is no node key here" if node is None else "all are of other nodes"
    return f"no signature could be checked: {why}"


def _broken(result: ChainResult, floor: Floor) -> AuditBroken | None:
    if not result.faults:
        return None
    first = result.faults[0]
    more = f"; {len(result.faults) - 1} more faults" if len(result.faults) > 1 else ""
    sound = first.position - 1 - floor.position
    return AuditBroken(
        f"entry {first.position:,} of the archive {first.what}; the {sound:,} before it are sound{more}",
        hint=f'angelia pipeline sql "SELECT * FROM audit_events WHERE position = {first.position}"',  # noqa: S608
    )


def node_key(data_dir: Path) -> NodePublicKey | None:
    """The public half of this machine's node key; None without a server's data directory."""
    path = data_dir / "node.key"
    try:
        seed = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NodeKeyUnreadable(
            f"the node key {path} cannot be read: {error.strerror}",
            hint="run it as the user whose server this is: without the key no signature can be checked",
        ) from error
    if len(seed) != _SEED_BYTES:
        raise NodeKeyUnreadable(
            f"the node key {path} is damaged: it must hold {_SEED_BYTES} bytes", hint="restore it from a backup"
        )
    public = Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()
    return NodePublicKey(str(key_id(KeyType.ED25519, public)), public)
