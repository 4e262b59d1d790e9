"""Queues from the command line: what a person sees, and the exit code that a script sees."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from angelia.cli import main
from angelia.cli.queue_access import length, milliseconds
from angelia.client import Client
from cli.pasting import commands_in, refused
from cli.running import PROGRAM, Angelia, Ended
from cli.talkers import Talker, register
from client.recorder import Recorder, closed_port

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dZ"
ORDERS = {
    "name": "orders", "namespace": "orders", "task": "", "state": "behind", "pending": 12_480, "leased": 64, "dead": 5,
    "in_per_second": 41.0, "out_per_second": 22.5, "lag_seconds": 560, "partitions": 16,
    "created_at": "2026-11-15T20:14:02Z",
}  # fmt: skip
EMAIL = ORDERS | {
    "name": "orders.email", "task": "email", "state": "ok", "pending": 0, "leased": 8, "dead": 0,
    "in_per_second": 8.2, "out_per_second": 8.2, "lag_seconds": 0, "partitions": 4,
}  # fmt: skip
RECORD = ORDERS | {"options": {}, "groups": []}
PURGE = "/v1/queues/orders/dead-letters/purge"


@pytest.fixture
def run(live: str, person: Callable[[str], Angelia]) -> Talker:
    """`run("push", queue, "1")` runs `angelia queue push` without an agent or a token, on an open server."""
    return Talker("nobody", person("nobody"), "queue")


@pytest.fixture
def queue() -> str:
    return f"q-{secrets.token_hex(4)}"


@pytest.fixture
def failing(run: Talker, queue: str) -> str:
    """A queue whose messages are dead letters after one failure."""
    run.does("configure", queue, "--retries", "0", "--retry-delay", "off")
    return queue


def lines(text: str) -> bytes:
    return text.encode()


def dead_letters(run: Talker, queue: str, *errors: str) -> None:
    """Has a message of its own partition fail with each error."""
    for number, error in enumerate(errors):
        run.does("push", queue, str(number), "--partition", f"p{number}", "--id", f"t{number}")
        popped = run.does("pop", queue, "--partition", f"p{number}", "--json")
        run.does("ack", "--lines", "--failed", "--error", error, stdin=lines(popped))


# The examples of the design, to the letter.


def test_the_tour_pushes_and_pops(run: Talker, queue: str) -> None:
    pushed = run("push", queue, '{"task":"resize","id":7}')
    assert pushed.code == 0
    assert re.fullmatch(rf"queued in {queue}/Default \(new queue\)\n{UUID}\n", pushed.out)
    assert pushed.err == ""
    popped = run("pop", queue, "--ack")
    assert popped == Ended(0, '{"task":"resize","id":7}\n', "acknowledged 1\n")
    again = run("push", queue, "8")
    assert again.out.startswith(f"queued in {queue}/Default\n")


def test_the_list_of_queues(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/queues", {"queues": [ORDERS, EMAIL], "next": None, "total": 2})
    assert angelia("queue", "list").out == (
        "NAME          STATE   PENDING  LEASED  DEAD  IN/S  OUT/S  LAG  PARTITIONS\n"
        "orders        behind   12,480      64     5  41.0   22.5   9m          16\n"
        "orders.email  ok            0       8     0   8.2    8.2   0s           4\n"
    )
    told = [json.loads(line) for line in angelia("queue", "list", "--json").out.splitlines()]
    assert told == [ORDERS, EMAIL]
    angelia("queue", "list", "orders", "--namespace", "n", "--task", "t", "-n", "5")
    assert server.seen[-1].target == "/v1/queues?limit=5&name=orders&namespace=n&task=t"


def test_a_purge_asks_and_says_what_it_did(server: Recorder, terminal: Callable[..., Ended]) -> None:
    server.tell("GET", "/v1/queues/orders", RECORD)
    server.tell("POST", PURGE, {"count": 3, "left": 5})
    server.tell("POST", PURGE, {"count": 3, "left": 2})
    ended = terminal("queue", "dlq", "purge", "orders", "--error", "timeout*", typed=[("[y/N] ", "y\n")])
    assert ended.out == (
        f"Purge 3 dead letters of orders at {server.url}, for good? [y/N] y\npurged 3 dead letters of orders (2 left)\n"
    )
    asked, done = (one.json() for one in server.asked("POST", PURGE))
    assert asked == {"error": "timeout*", "dry_run": True}
    assert done == {"error": "timeout*"}


def test_a_purge_without_a_terminal_is_refused(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/queues/orders", RECORD)
    server.tell("POST", PURGE, {"count": 2, "left": 2})
    assert angelia("queue", "dlq", "purge", "orders") == Ended(
        2,
        "",
        "error: purging 2 dead letters needs a yes, and there is no terminal to ask (confirmation_required)\n"
        "hint: look first with `angelia queue dlq list orders`, then add --yes\n",
    )
    assert all(one.json()["dry_run"] for one in server.asked("POST", PURGE))


# Push.


def test_a_message_comes_from_stdin_and_is_printed_as_it_was_written(run: Talker, queue: str) -> None:
    run.does("push", queue, stdin=b'{"b": 1.50,\n "a": [null, 12345678901234567890]}\n')
    run.does("push", queue, "-", "--text", stdin=b"hello\nworld\n")
    run.does("push", queue, "plain words", "--text")
    popped = run.does("pop", queue, "-n", "9", "--ack")
    assert popped == '{"b":1.50,"a":[null,12345678901234567890]}\n"hello\\nworld"\n"plain words"\n'


def test_what_is_no_json_is_refused_with_the_way_on(run: Talker, queue: str) -> None:
    wrong = run("push", queue, "hello")
    assert (wrong.code, wrong.out) == (2, "")
    assert re.fullmatch(
        r"error: the message is no JSON: .* \(usage\)\n"
        r"hint: a text is a JSON string, in quotes of its own; --text sends it as it is\n",
        wrong.err,
    )
    line = run("push", queue, "--lines", stdin=b"1\n\n2\nx\n3\n")
    assert line.code == 2
    assert line.err.startswith("error: line 4 is no JSON: ")
    assert "\nhint: 2 messages before it are pushed; " in line.err
    assert run.does("pop", queue, "-n", "9", "--ack") == "1\n2\n"
    assert run("push", queue, "1", "--lines").code == 2
    assert run("push", queue, "--text", stdin=b"\xff").code == 2


def test_lines_go_from_queue_to_queue(run: Talker, queue: str) -> None:
    pushed = run("push", queue, "--lines", "--partition", "p", stdin=b'{"n": 1}\n[2]\n\n"three"\n')
    assert (pushed.out, pushed.err) == (f"queued 3 messages in {queue}/p\n", "")
    read = run.does("read", queue, "--json")
    data = "".join(json.dumps(json.loads(line)["data"]) + "\n" for line in read.splitlines())
    other = f"{queue}-2"
    ids = run.does("push", other, "--lines", "-q", stdin=lines(data)).splitlines()
    assert len(ids) == 3
    assert all(re.fullmatch(UUID, one) for one in ids)
    assert run.does("pop", other, "-n", "9", "--ack") == '{"n":1}\n[2]\n"three"\n'
    many = run.does("push", other, "--lines", "--json", stdin=b"".join(b"%d\n" % n for n in range(2500)))
    assert [json.loads(line)["status"] for line in many.splitlines()] == ["queued"] * 2500


def test_an_id_makes_a_second_push_a_duplicate_and_quiet_prints_only_an_id(run: Talker, queue: str) -> None:
    first = run.does("push", queue, "1", "--id", "order-7", "-q")
    second = run("push", queue, "2", "--id", "order-7")
    assert re.fullmatch(rf"{UUID}\n", first)
    assert second.out == f"duplicate: {queue}/Default has a message with this id already\n{first}"
    told = json.loads(run.does("push", queue, "3", "--json"))
    assert (told["status"], told["queueName"]) == ("queued", queue)
    assert re.fullmatch(UUID, told["message_id"])


def test_a_full_queue_is_exit_1_and_says_so(run: Talker, queue: str) -> None:
    run.does("configure", queue, "--max-size", "1")
    run.does("push", queue, "1")
    full = run("push", queue, "2")
    assert full.code == 1
    assert "max capacity (queue_full)" in full.err


def test_an_agent_signs_if_it_is_named(live: str, shell: Path, run: Talker, queue: str) -> None:
    name = f"ann-{secrets.token_hex(3)}"
    register(live, shell / "home-nobody", name)
    run.does("push", queue, "1")
    run.does("push", queue, "2", "--as", name)
    popped = run.does("pop", queue, "-n", "2", "--json").splitlines()
    assert [json.loads(line)["producerSub"] for line in popped] == [None, name]


# Pop and acknowledge.


def test_what_is_popped_without_ack_is_leased_and_the_hint_acknowledges_it(run: Talker, queue: str) -> None:
    run.does("push", queue, "1", "--id", "a b's")
    popped = run("pop", queue, "--group", "mailer")
    assert (popped.code, popped.out) == (0, "1\n")
    assert run("pop", queue, "--group", "mailer").out == ""
    (hint,) = commands_in(popped.err)
    assert refused(hint) == ""
    acked = run.run(*shlex.split(hint)[1:])
    assert acked == Ended(0, "acknowledged 1\n", "")
    late = run.run(*shlex.split(hint)[1:], "--retry")
    assert late.code == 6
    assert "(lease_lost)" in late.err


def test_nothing_to_pop_is_exit_0_or_8_and_a_wait_ends(run: Talker, queue: str) -> None:
    unknown = f"nothing to deliver in {queue}: there is no such queue yet\nhint: angelia queue list\n"
    assert run("pop", queue) == Ended(0, "", unknown)
    run.does("configure", queue)
    assert run("pop", queue) == Ended(0, "", f"nothing to deliver in {queue}\n")
    assert run("pop", queue, "-q") == Ended(0, "", "")
    none = run("pop", queue, "--require", "--wait", "0.2")
    assert (none.code, none.err.splitlines()[0]) == (8, f"error: nothing to deliver in {queue} (not_found)")
    for argv in (
        [],
        [queue, "--namespace", "n"],
        [queue, "--wait", "soon"],
        [queue, "--wait", "-1"],
        [queue, "--start", "never"],
    ):
        assert run("pop", *argv).code == 2


def test_a_pop_waits_for_a_message(run: Talker, queue: str, live: str) -> None:
    child = subprocess.Popen([*PROGRAM, "queue", "pop", queue, "--ack", "--wait"], stdout=subprocess.PIPE, text=True)
    with Client(live) as client:
        client.queues.push(queue, "at last")
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, '"at last"\n')


def test_a_wait_while_pops_are_paused_does_not_ask_all_the_time(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/api/v1/pop/queue/orders", status=204)
    modes = {"maintenanceMode": False, "popMaintenanceMode": True, "bufferedMessages": 0, "bufferHealthy": True}
    server.tell("GET", "/api/v1/system/maintenance", modes | {"message": ""})
    assert angelia("queue", "pop", "orders", "--wait", "0.3") == Ended(
        0,
        "",
        "nothing to deliver in orders: pops are paused in all queues\nhint: `angelia queue resume` ends that\n",
    )
    assert len(server.asked("GET", "/api/v1/pop/queue/orders")) == 2, "at once, and at the end of the wait"


def test_messages_are_acknowledged_in_each_way(run: Talker, failing: str) -> None:
    for number in range(4):
        run.does("push", failing, str(number), "--partition", f"p{number}")
    popped = run.does("pop", failing, "-n", "9", "--partitions", "9", "--json").splitlines()
    ways = (
        ([], "acknowledged 1\n"),
        (["--retry"], "gave back 1\n"),
        (["--failed", "--error", "why"], "failed 1; 1 dead letter\n"),
        (["--dead"], "gave up 1; 1 dead letter\n"),
    )
    for line, (how, said) in zip(popped, ways, strict=True):
        assert run.does("ack", "--lines", *how, stdin=lines(line)) == said
    again = run.does("pop", failing, "--json")
    assert json.loads(again)["data"] == json.loads(popped[1])["data"]
    told = json.loads(run.does("ack", "--lines", "--json", stdin=lines(again)))
    assert (told["success"], told["dlq"]) == (True, False)
    for argv in (
        ["x"],
        ["--partition-id", "y"],
        ["x", "--lines"],
        ["--lines", "--failed", "--dead"],
        ["--lines", "--error", "e"],
    ):
        assert run("ack", *argv).code == 2
    assert run("ack", "--lines", stdin=b"no json\n").code == 2
    unknown = run("ack", "x", "--partition-id", "00000000-0000-4000-8000-000000000000")
    assert unknown.code == 8
    assert "as `angelia queue pop NAME --json` printed them" in unknown.err
    empty = run("ack", "--lines", stdin=b"{}\n")
    assert (empty.code, empty.err.splitlines()[0]) == (
        2,
        "error: line 1 is no message: it has no transactionId (usage)",
    )


def test_an_error_that_is_no_utf8_is_sent_as_escapes(run: Talker, failing: str) -> None:
    for how in ("--failed", "--dead"):
        run.does("push", failing, "1")
        popped = run.does("pop", failing, "--json")
        run.does("ack", "--lines", how, "--error", os.fsdecode(b"caf\xe9"), stdin=lines(popped))
    told = [json.loads(line) for line in run.does("dlq", "list", failing, "--json").splitlines()]
    assert [one["errorMessage"] for one in told] == [r"caf\udce9"] * 2


def test_messages_of_several_queues_and_from_a_start_are_popped(run: Talker) -> None:
    namespace = f"n{secrets.token_hex(3)}"
    run.does("push", f"{namespace}.a", "1")
    run.does("push", f"{namespace}.b", "2")
    assert run("pop", f"{namespace}.a", "--group", "late", "--start", "new").out == ""
    assert sorted(run.does("pop", "--namespace", namespace, "-n", "9", "--partitions", "9", "--ack").split()) == [
        "1",
        "2",
    ]
    assert run.does("pop", "--task", "b", "--namespace", namespace, "--group", "g", "--start", "1h") == "2\n"


def test_a_message_is_acknowledged_only_after_it_was_printed(run: Talker, queue: str) -> None:
    run.does("push", queue, "1")
    # What stays in the buffer of stdout is written again at exit, and must not change the exit code.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    argv = [*PROGRAM, "queue", "pop", queue, "--ack"]
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, env=buffered)
    assert ended.returncode == 1
    assert b"disk_full" in ended.stderr


def test_payloads_and_names_of_others_stay_on_their_line(run: Talker, queue: str) -> None:
    evil = "\x1b[31mred\u202e\nline"
    run.does("push", queue, evil, "--text", "--partition", "p\x1b[2J", "--id", "\x1b[1m")
    for argv in (["read", queue], ["read", queue, "--json"], ["partitions", queue], ["pop", queue]):
        shown = run(*argv)
        assert not set(shown.out + shown.err) & set("\x1b\u202e")
        assert shown.out.count("\n") <= 2


def test_names_and_ids_that_cannot_be_ones_are_refused_in_our_words(run: Talker, queue: str) -> None:
    strange, long = os.fsdecode(b"caf\xe9"), "x" * 256
    for argv, why in (
        (["push", "", "1"], "NAME: a name has 1 to 255 characters"),
        (["push", long, "1"], "NAME: a name has 1 to 255 characters"),
        (["push", queue, "1", "--partition", ""], "--partition: a name has 1 to 255 characters"),
        (["push", queue, "1", "--id", "x" * 1001], "--id: an id has 1 to 1,000 characters"),
        (["show", strange], "NAME: it is not UTF-8 text"),
        (["pop", queue, "--group", strange], "--group: it is not UTF-8 text"),
        (["dlq", "list", queue, "--error", strange], "--error: it is not UTF-8 text"),
        (["ack", strange, "--partition-id", "p"], "[ID]: it is not UTF-8 text"),
        (["configure", queue, "--retries", str(1 << 31)], "--retries: a whole number from 0 to 2,147,483,647"),
        (["configure", queue, "--lease", "0s"], "--lease: 0s is shorter than 1s"),
        (["configure", queue, "--keep", "25000d"], "--keep: 25000d is longer than 68 years"),
        (["configure", queue, "--retry-delay", "25d"], "--retry-delay: 25d is longer than 24 days"),
    ):
        refusal = run(*argv)
        assert (refusal.code, refusal.err.splitlines()[0]) == (2, f"error: {why} (usage)")


def test_a_large_message_comes_from_stdin(run: Talker, queue: str) -> None:
    run.does("push", queue, stdin=b'"' + b"x" * (2 << 20) + b'"')
    assert len(run.does("pop", queue, "--ack")) == (2 << 20) + 3
    large = run("push", queue, stdin=b'"' + b"x" * (32 << 20) + b'"')
    assert (large.code, large.err.splitlines()[0]) == (
        1,
        "error: a push has at most 32 MiB, and stdin has more (too_large)",
    )


def test_hints_about_a_queue_whose_name_has_blanks_work_when_pasted(run: Talker, queue: str) -> None:
    name = f"{queue} of mine"
    run.does("push", name, "1")
    asked = run("clear", name)
    assert f"`angelia queue show '{name}'`" in asked.err
    (hint,) = commands_in(asked.err)
    assert run.run(*shlex.split(hint)[1:]).code == 0


# Looking.


def test_a_queue_is_shown_with_its_options_and_groups(run: Talker, queue: str) -> None:
    run.does("configure", queue, "--lease", "10m", "--retries", "5", "--retry-delay", "250ms", "--namespace", "n")
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n")
    run.does("pop", queue, "--group", "mailer")
    shown = dict(re.split(r"  +", line, maxsplit=1) for line in run.does("show", queue).splitlines())
    assert shown["lease"] == "10m"
    assert shown["retries"] == "5, each after 250 ms"
    assert (shown["namespace"], shown["kept"], shown["encrypted"]) == ("n", "for ever", "no")
    assert shown["messages"].endswith("0 dead letters")
    assert re.fullmatch(r"mailer: 3 behind, \d+s", shown["group"])
    told = json.loads(run.does("show", queue, "--json"))
    assert (told["name"], told["options"]["leaseTime"], told["groups"][0]["name"]) == (queue, 600, "mailer")
    run.does("pop", queue, "--partition", "other")
    assert re.search(r"^group +-: 3 behind", run.does("show", queue), re.MULTILINE)


def test_looking_at_a_queue_changes_nothing(run: Talker, queue: str) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n")
    for argv in (["list", queue], ["show", queue], ["read", queue], ["partitions", queue], ["groups", queue]):
        run.does(*argv)
    with tailing(queue) as child:
        assert child.stdout is not None
        assert len([child.stdout.readline() for _ in range(3)]) == 3
    assert run.does("pop", queue, "-n", "9") == "1\n2\n3\n"


def test_messages_are_read_in_pages(run: Talker, queue: str) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n4\n5\n")
    cut = run("read", queue, "-n", "2")
    assert re.fullmatch(rf"(?:{TIME}  [0-9a-f-]{{12}}  Default  \d\n){{2}}", cut.out)
    found = re.fullmatch(r"2 shown; --all or --cursor (\S+)\n", cut.err)
    assert found is not None
    assert [line[-1] for line in run.does("read", queue, "-n", "2", "--cursor", found[1]).splitlines()] == ["3", "4"]
    everything = run("read", queue, "-n", "2", "--all")
    assert [line[-1] for line in everything.out.splitlines()] == ["1", "2", "3", "4", "5"]
    assert everything.err == ""
    assert run("read", queue, "-n", "5").err == ""
    assert run("read", queue, "--partition", "none", "--require").code == 8
    assert run("read", queue, "--partition", "none").err == f"no messages in {queue}/none\n"
    wrong = run("read", queue, "--cursor", "nonsense")
    assert wrong == Ended(
        2,
        "",
        f"error: --cursor: 'nonsense' is no cursor of this list (usage)\nhint: angelia queue read {queue}\n",
    )


@contextmanager
def tailing(*argv: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [*PROGRAM, "queue", "tail", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def test_tail_begins_with_the_newest_and_goes_on_until_ctrl_c(run: Talker, queue: str) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n")
    with tailing(queue, "-n", "2") as child:
        assert child.stdout is not None
        heard = [child.stdout.readline() for _ in range(2)]
        run.does("push", queue, '{"n": 4}', "--partition", "p")
        heard.append(child.stdout.readline())
        child.send_signal(signal.SIGINT)
        rest, err = child.communicate(timeout=20)
    assert [re.sub(r"^.*  (\S+  \S+)\n$", r"\1", line) for line in heard] == ["Default  2", "Default  3", 'p  {"n":4}']
    assert (child.returncode, rest, err) == (130, "", "\nstopped\n")


def test_tail_does_not_wait_for_a_server_that_was_never_there(angelia: Angelia) -> None:
    with closed_port() as url:
        assert angelia("queue", "tail", "jobs", "--url", url).code == 7


def test_tail_as_json_has_every_member(run: Talker, queue: str) -> None:
    run.does("push", queue, "1")
    with tailing(queue, "--json") as child:
        assert child.stdout is not None
        told = json.loads(child.stdout.readline())
    assert (told["data"], told["queue"], told["partition"]) == (1, queue, "Default")
    assert {"id", "transaction_id", "created_at", "partition_id", "producer", "trace_id"} <= set(told)


def test_partitions_groups_and_lags_are_tables(run: Talker, queue: str) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n")
    run.does("push", queue, "3", "--partition", "p2")
    run.does("pop", queue, "--group", "mailer", "--partition", "Default", "--ack")
    run.does("pop", queue, "--ack", "--partition", "p2")
    parts = run.does("partitions", queue).splitlines()
    assert re.fullmatch(r"PARTITION +MESSAGES +PENDING +LEASED +DEAD +EVICTED +OLDEST +NEWEST", parts[0])
    assert [line.split()[:2] for line in parts[1:]] == [["Default", "2"], ["p2", "1"]]
    groups = run.does("groups", queue).splitlines()
    assert re.fullmatch(r"GROUP +QUEUE +STATE +BEHIND +LAG +PARTITIONS +MEMBERS +SINCE", groups[0])
    assert sorted(line.split()[0] for line in groups[1:]) == ["-", "mailer"]
    assert {line.split()[0]: line.split()[3] for line in groups[1:]} == {"-": "2", "mailer": "2"}
    lag = run.does("lag", queue, "--group", "mailer").splitlines()
    assert re.fullmatch(r"PARTITION +BEHIND +LAG +CONSUMED +LAST +LEASED BY", lag[0])
    assert {line.split()[0]: line.split()[1] for line in lag[1:]} == {"Default": "1", "p2": "1"}
    never = run("lag", queue, "--group", "nobody")
    assert (never.code, never.out, never.err.splitlines()[0]) == (0, "", f"no consumer has read {queue} as nobody")
    assert json.loads(run.does("lag", queue, "--json").splitlines()[0])["partition"]


def test_an_empty_list_says_how_to_go_on(run: Talker, server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/queues", {"queues": [], "next": None, "total": 0})
    empty = angelia("queue", "list")
    assert (empty.code, empty.out) == (0, "")
    assert empty.err == """no queues yet\nhint: angelia queue push jobs '{"task":"resize"}'\n"""
    assert angelia("queue", "list", "--require").code == 8


@pytest.mark.parametrize(
    "argv",
    [
        ["show"], ["read"], ["tail"], ["partitions"], ["groups"], ["lag"], ["clear", "--yes"], ["delete", "--yes"],
        ["replay", "--from", "1h", "--yes"], ["dlq", "list"], ["dlq", "requeue"], ["dlq", "purge", "--yes"],
    ],
    ids=lambda argv: " ".join(argv),
)  # fmt: skip
def test_a_queue_that_is_not_there_is_exit_8(run: Talker, queue: str, argv: list[str]) -> None:
    ended = run(*argv, queue)
    assert (ended.code, ended.out) == (8, "")
    assert ended.err == f"error: there is no queue {queue} (not_found)\nhint: angelia queue list\n"


# Operating.


def test_options_are_set_and_the_rest_stays(run: Talker, queue: str) -> None:
    run.does("configure", queue, "--lease", "90s", "--delay", "1m", "--window", "5s", "--priority", "3", "--encrypt")
    changed = run.does("configure", queue, "--retries", "7", "--delay", "off", "--no-encrypt", "--archive")
    facts = dict(re.split(r"  +", line, maxsplit=1) for line in changed.splitlines())
    assert (facts["lease"], facts["delay"], facts["window"], facts["priority"]) == ("1m30s", "off", "5s", "3")
    assert (facts["retries"], facts["encrypted"], facts["archive"]) == ("7, each after 1s", "no", "yes")
    told = json.loads(run.does("configure", queue, "--partition", "p", "--lease", "5s", "--json"))
    assert (told["queue"], told["options"]["leaseTime"]) == (queue, 5)
    assert run.does("configure", queue, "-q") == f"{queue}\n"
    for argv in (["--lease", "soon"], ["--encrypt", "--no-encrypt"], ["--retries", "-1"], ["--retry-delay", "5"]):
        assert run("configure", queue, *argv).code == 2


def test_lengths_of_time_are_read(run: Talker) -> None:
    assert [length(text) for text in ("0", "off", "90s", "1h30m")] == [0, 0, 90, 5400]
    assert [milliseconds(text) for text in ("250ms", "5s", "off")] == [250, 5000, 0]


def test_what_removes_messages_asks_first(run: Talker, queue: str) -> None:
    run.does("push", queue, "1")
    for flags, what in (
        (["--keep", "1d"], f"removing the messages of {queue} that are older than 1d"),
        (["--keep-consumed", "1h"], f"removing the messages of {queue} that were consumed and are older than 1h"),
        (["--max-wait", "5m"], f"skipping the messages of {queue} that wait for longer than 5m"),
    ):
        asked = run("configure", queue, *flags)
        assert asked.code == 2
        assert asked.err.startswith(f"error: {what} needs a yes, and there is no terminal to ask")
        assert "nothing done" in run("configure", queue, *flags, "--dry-run").err
    assert "for ever" in run.does("show", queue)
    assert "kept        messages for 1d" in run.does("configure", queue, "--keep", "1d", "--yes") + run.does(
        "show", queue
    )
    assert "messages for 2d" in run.does("configure", queue, "--keep", "2d"), "a longer time removes nothing"
    both = run.does("configure", queue, "--keep-empty", "1h")
    assert "messages for 2d, empty partitions for 1h" in both
    assert "for ever" in run.does("configure", queue, "--keep", "off", "--keep-empty", "off")
    assert "messages for 1d" in run.does("configure", f"{queue}-new", "--keep", "1d"), "a new queue has no messages"
    assert "would configure" in run("configure", queue, "--retries", "1", "--dry-run").err


def test_a_rule_that_was_switched_off_does_not_come_back_with_another(run: Talker, live: str, queue: str) -> None:
    with Client(live) as client:
        client.queues.configure(queue, retention_enabled=False, retention_seconds=1)
    assert "empty partitions for 1h" in run.does("configure", queue, "--keep-empty", "1h")
    with Client(live) as client:
        assert client.queues.configure(queue).options.retention_seconds == 0


def test_a_consumer_group_reads_again_or_skips(run: Talker, queue: str) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n")
    run.does("pop", queue, "--group", "mailer", "-n", "2", "--ack")
    asked = run("replay", queue, "--group", "mailer", "--from", "beginning")
    assert asked.code == 2
    assert asked.err == (
        f"error: moving mailer of {queue} to the beginning (2 read again, 0 skipped) needs a yes, "
        "and there is no terminal to ask (confirmation_required)\n"
        f"hint: look first with `angelia queue lag {queue} --group mailer`, then add --yes\n"
    )
    assert run.does("replay", queue, "--group", "mailer", "--from", "beginning", "--yes") == (
        f"moved mailer of {queue} to the beginning: 2 messages read again, 0 skipped\n"
    )
    assert run.does("pop", queue, "--group", "mailer", "-n", "9", "--ack") == "1\n2\n3\n"
    run.does("replay", queue, "--group", "mailer", "--from", "1h", "--yes")
    assert "3 skipped" in run.does("replay", queue, "--group", "mailer", "--from", "end", "--yes")
    assert run("pop", queue, "--group", "mailer").out == ""
    one = run.does("replay", queue, "--partition", "Default", "--group", "mailer", "--from", "beginning", "--yes")
    assert f"moved mailer of {queue}/Default to the beginning: 3 messages read again" in one
    for flags, missing in (
        (["--group", "mialer"], "consumer group mialer"),
        (["--partition", "none"], "partition none"),
    ):
        unknown = run("replay", queue, *flags, "--from", "1h", "--yes")
        assert unknown.code == 8
        assert unknown.err.startswith(f"error: {queue} has no {missing} (not_found)\n")
    assert run("replay", queue, "--from", "sometimes").code == 2
    assert run("replay", queue).code == 2


def test_dead_letters_are_listed_shown_put_back_and_purged(run: Talker, failing: str) -> None:
    dead_letters(run, failing, "timeout after 30 s", "timeout after 5 s", "no such\x1b file")
    table = run.does("dlq", "list", failing).splitlines()
    assert re.fullmatch(r"ID +PARTITION  GROUP  RETRIES  FAILED  ERROR", table[0])
    assert table[1].endswith(r"  no such\x1b file")
    assert len(table) == 4
    assert len(run.does("dlq", "list", failing, "--error", "timeout*", "--since", "1h").splitlines()) == 3
    assert run("dlq", "list", failing, "--until", "1h", "--require").code == 8
    page = run("dlq", "list", failing, "-n", "1")
    assert page.err == "1 of 3 shown; --all or --cursor 1\n"
    assert failing in run.does("dlq", "list", "-n", "3")
    told = [json.loads(line) for line in run.does("dlq", "list", failing, "--json", "--all", "-n", "2").splitlines()]
    assert [one["transactionId"] for one in told] == ["t2", "t1", "t0"]
    assert {"errorMessage", "retryCount", "data", "failedAt", "consumerGroup", "partitionId"} <= set(told[0])
    for given in ("t1", told[1]["id"]):
        shown = run.does("dlq", "show", failing, given)
        assert re.search(r"^error +timeout after 5 s$", shown, re.MULTILINE)
        assert re.search(r"^payload +1$", shown, re.MULTILINE)
    assert run("dlq", "show", failing, "t9").code == 8
    assert "would requeue 2 dead letters" in run("dlq", "requeue", failing, "--error", "timeout*", "--dry-run").err
    assert run.does("dlq", "requeue", failing, "t0") == f"requeued 1 dead letter of {failing} (2 left)\n"
    assert run.does("pop", failing, "--ack") == "0\n"
    dry = run("dlq", "purge", failing, "--dry-run")
    assert (dry.code, dry.out) == (0, "")
    assert "would purge 2 dead letters" in dry.err
    purged = run.does("dlq", "purge", failing, "--error", "timeout*", "--yes")
    assert purged == f"purged 1 dead letter of {failing} (1 left)\n"
    assert run.does("dlq", "purge", failing, "--error", "timeout*") == f"no dead letters of {failing} to purge\n"
    assert run.does("dlq", "purge", failing, "t2", "--yes") == f"purged 1 dead letter of {failing} (0 left)\n"
    assert run.does("dlq", "requeue", failing) == f"no dead letters of {failing} to requeue\n"
    assert run("dlq", "list", failing).err == f"no dead letters of {failing}\nhint: angelia queue show {failing}\n"
    assert run("dlq", "list", failing, "--error", "x").err == (
        f"no dead letters of {failing} that these flags choose\nhint: angelia queue dlq list {failing}\n"
    )


def test_a_whole_queue_is_cleared_and_deleted_after_its_name_was_typed(
    run: Talker, queue: str, terminal: Callable[..., Ended], live: str
) -> None:
    run.does("push", queue, "--lines", stdin=b"1\n2\n3\n")
    run.does("push", queue, "4", "--partition", "p")
    run.does("pop", queue, "--group", "mailer")
    refused = run("delete", queue)
    assert refused.code == 2
    assert refused.err.startswith(f"error: deleting the queue {queue} with 4 messages and 0 dead letters needs a yes")
    assert run.does("clear", queue, "--partition", "p", "--yes") == f"removed 1 message of {queue}/p\n"
    assert run("clear", queue, "--partition", "none", "--yes").code == 8
    wrong = terminal("queue", "clear", queue, typed=[("to go on: ", "y\n")])
    assert (wrong.code, "removed" in wrong.out) == (1, False)
    right = terminal("queue", "clear", queue, typed=[("to go on: ", f"{queue}\n")])
    assert right.out == (
        f"Remove 3 messages of {queue} at {live}, for good? Type {queue} to go on: {queue}\n"
        f"removed 3 messages of {queue}\n"
    )
    assert run("delete", queue, "--group", "none", "--yes").code == 8
    assert run.does("delete", queue, "--group", "mailer", "--yes") == (
        f"deleted the consumer group mailer of {queue} with 0 dead letters\n"
    )
    assert run.does("delete", queue, "--yes") == f"deleted the queue {queue} with 0 messages and 0 dead letters\n"
    assert run("show", queue).code == 8


def test_all_queues_are_paused_and_resumed(server: Recorder, angelia: Angelia) -> None:
    """Not on the real server, which other tests share."""
    pops, both = {"popMaintenanceMode": True, "message": ""}, {"bufferedMessages": 0, "bufferHealthy": True}
    server.tell("POST", "/api/v1/system/maintenance/pop", pops)
    server.tell("POST", "/api/v1/system/maintenance", pops | both | {"maintenanceMode": True})
    paused = angelia("queue", "pause")
    assert paused == Ended(0, "paused: pops return nothing, in all queues\n", "`angelia queue resume` ends that\n")
    assert angelia("queue", "resume").out == "resumed: pops return messages\n"
    assert angelia("queue", "pause", "--push", "-q").out == ""
    assert angelia("queue", "resume", "--push").out == "resumed: pushes are stored at once\n"
    asked = [(one.path.rpartition("/")[2], one.json()["enabled"]) for one in server.seen]
    assert asked == [("pop", True), ("pop", False), ("maintenance", True), ("maintenance", False)]
    assert {one.headers.get("authorization") for one in server.seen} == {"Bearer agt_operator"}
    assert "all queues" in angelia("queue", "pause", "--help").out


def test_without_a_credential_the_hint_names_some(server: Recorder, angelia: Angelia) -> None:
    server.tell("GET", "/v1/queues/orders", {"code": "unauthenticated", "title": "no"}, status=401)
    server.tell("POST", "/api/v1/push", {"error": "Authentication required"}, status=401)
    for argv in (["show", "orders"], ["push", "orders", "1", "-v"]):
        refused = angelia("queue", *argv)
        assert refused.code == 5
        assert "--token-file F" in refused.err


def test_names_of_queues_are_completed(run: Talker, queue: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:  # type: ignore[no-untyped-def]
    run.does("push", queue, "1")
    monkeypatch.setenv("_ANGELIA_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", f"angelia queue show {queue[:6]}")
    monkeypatch.setenv("COMP_CWORD", "3")
    capsys.readouterr()
    main.run([])
    assert queue in capsys.readouterr().out
