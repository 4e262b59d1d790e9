"""What one command works with: the server, the agent that signs, the operator's token, and its output."""

from __future__ import annotations

import difflib
import getpass
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from angelia.cli import lean_httpx
from angelia.cli.errors import Usage
from angelia.cli.flags import SharedFlags
from angelia.cli.output import Output
from angelia.errors import AngeliaError, Denied, InvalidArgument, NotFound, Unauthenticated

if TYPE_CHECKING:
    from angelia.client import Client
    from angelia.client.transport import Signer, Trip
    from angelia.mailbox.identity import Identity
    from angelia.mailbox.mailbox import Mailbox
    from angelia.mailbox.notices import Notice
    from angelia.settings import Context, Loaded, Settings


class CommandContext:
    """One run of one verb. Everything is looked up when it is first used, so that help stays fast."""

    def __init__(self, shared: SharedFlags, out: Output) -> None:
        self.shared = shared
        self.out = out
        self._open = ExitStack()
        self._fell_back: set[str] = set()

    def close(self) -> None:
        """Closes the clients and mailboxes that the command opened."""
        self._open.close()

    @cached_property
    def loaded(self) -> Loaded:
        from angelia import settings

        return settings.load()

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    @cached_property
    def url(self) -> str:
        """The server: --url, --context, the setting, a server running here, the default port."""
        if self.shared.url and self.shared.context:
            raise Usage("--url and --context both name a server", hint="say one of them")
        lean_httpx.load()
        from angelia.client.opening import server_url

        try:
            return server_url(self.settings.data_dir, self._named_url)
        except InvalidArgument as error:
            raise Usage(error.message, hint=error.hint) from error

    @property
    def _named_url(self) -> str | None:
        return self.shared.url or (self._context and self._context.url) or self.settings.url

    @cached_property
    def token(self) -> str | None:
        """The operator's token: --token-file, the context's file, the setting, the data directory's."""
        if self.shared.token_file:
            return _first_line(Path(self.shared.token_file))
        if self._context is not None and self._context.token_file:
            return _first_line(Path(self._context.token_file).expanduser())
        return self.settings.token or self._token_of_data_directory()

    @cached_property
    def said(self) -> list[tuple[str, str]]:
        """The flags that named server and agent, as far as the next command needs them too."""
        given = self.shared
        flags = (
            ("--as", given.identity if len(self._local_names()) > 1 else None),
            ("--url", given.url),
            ("--context", given.context),
            ("--token-file", given.token_file),
        )
        return [(flag, value) for flag, value in flags if value]

    def explain(self, error: AngeliaError, named: Sequence[object] = ()) -> None:
        """Corrects a hint that cannot know how this command was called; `named` are the command's arguments."""
        if isinstance(error, Denied) and "token create --role" in error.hint:
            error.hint = self._better_token()
        elif error.code in ("not_found", "key_not_found"):
            unknown = [name for name in named if isinstance(name, str) and name in error.message]
            if unknown and (near := self._near(unknown[0])):
                error.hint = f"did you mean {' or '.join(near)}?" + (f" {error.hint}" if error.hint else "")

    def _local_names(self) -> list[str]:
        """The agents of this machine; none if they cannot be read, since another error may be on its way."""
        from angelia.mailbox import agent_names

        try:
            return agent_names.names(self.settings.home)
        except (AngeliaError, OSError):
            return []

    def _better_token(self) -> str:
        """The hint for a role that is too low: a token made with it would be refused as well."""
        path, own = self.settings.data_dir / "admin.token", self._token_of_data_directory()
        from_file = self.shared.token_file or (self._context and self._context.token_file)
        if own is not None and own != self.token:
            if from_file:
                return f"the data directory's token may: --token-file {shlex.quote(str(path))}"
            return "unset ANGELIA_TOKEN, whose role is too low: the data directory's token may"
        named = "the token file" if from_file else "ANGELIA_TOKEN"
        short = f"the role of {named} is too low" if self.token else "it takes an operator's token"
        return f"{short}: --token-file F names another, such as admin.token of the server's data directory"

    def _near(self, handle: str) -> list[str]:
        """Known handles that are near to this one; none if it is known itself."""
        from angelia.mailbox import identity

        names = self._local_names()
        cards = [identity.public_identity(self.settings.home, name) for name in names]
        known = {*names, *(card.handle for card in cards if card is not None)}
        if "mailbox" in self.__dict__:
            known |= {pin.nhi for pin in self.mailbox.pinned_keys.pins()}
        return [] if handle in known else difflib.get_close_matches(handle, known)

    @cached_property
    def identity(self) -> Identity:
        """The agent that signs: --as, the context's, the setting, or the only one."""
        return self.opened(self.identity_name)

    @property
    def named_identity(self) -> str | None:
        """The agent that --as, the context or the setting names."""
        return self.shared.identity or (self._context and self._context.identity) or self.settings.identity or None

    @cached_property
    def identity_name(self) -> str:
        """The name of the agent that signs, without opening its key."""
        from angelia.mailbox import agent_names, identity

        home, wanted = self.settings.home, self.named_identity
        name, names = identity.local_name(home, wanted), agent_names.names(home)
        if name is not None:
            return name
        if wanted:
            near = difflib.get_close_matches(wanted, names, n=1)
            meant = f"did you mean --as {near[0]}? " if near else ""
            known = f"{meant}here are: {_listed(names)}" if names else f"angelia agent new {wanted}"
            raise NotFound(f"the agent {wanted} has no keys in {home}", hint=known)
        if not names:
            raise Usage(f"no agent has keys in {home}", hint="angelia agent new NAME --register")
        raise Usage(f"{len(names)} agents have keys here: {_listed(names)}", hint=f"say which: --as {names[0]}")

    def opened(self, name: str) -> Identity:
        """An agent of this machine with its key, after asking for a passphrase if it has one."""
        from angelia.mailbox import identity

        return identity.load(self.settings.home, name, lambda: self._ask(f"passphrase of {name}: "))

    def local_name(self, handle: str) -> str | None:
        """The local name of an agent of this machine, found by that name or by its handle."""
        from angelia.mailbox import identity

        return identity.local_name(self.settings.home, handle)

    @cached_property
    def mailbox(self) -> Mailbox:
        """The mailbox of the agent that signs."""
        return self.mailbox_of(self.identity)

    def mailbox_of(self, identity: Identity) -> Mailbox:
        from angelia.mailbox.mailbox import Mailbox

        longest = self.settings.max_ttl_seconds
        mailbox = self._open.enter_context(Mailbox(self.settings.home, identity, datetime.now(UTC), ttl_max=longest))
        mailbox.notices.listen(self._notice)
        return mailbox

    def as_agent(self, signer: Signer | None = None) -> Client:
        """A client that signs."""
        return self._client(signer or self.identity, None)

    def as_operator(self) -> Client:
        """A client with the operator's token."""
        if self.token is None and self._named_url is None and self._running_here is None:
            from angelia.client import Unreachable

            raise Unreachable(
                f"no server runs on {self.settings.data_dir}",
                hint="`angelia serve` starts one; --url or ANGELIA_DATA_DIR names another",
            )
        if self.token is None:
            raise Unauthenticated(
                f"this needs an operator's token for {self.url}, and none was found",
                hint="--token-file F or ANGELIA_TOKEN; on the server's machine its data directory has one",
            )
        return self._client(None, self.token)

    def as_anyone(self) -> Client:
        """A client without a credential."""
        return self._client(None, None)

    def ask_new_passphrase(self) -> str:
        """Asks twice for a passphrase that will protect a key."""
        first = self._ask("new passphrase: ")
        if not first:
            raise Usage("an empty passphrase protects nothing", hint="leave out --passphrase for a key without one")
        if self._ask("once more: ") != first:
            raise Usage("the two passphrases differ; nothing was made")
        return first

    @cached_property
    def _context(self) -> Context | None:
        name = self.shared.context
        if name is None:
            return None
        if name not in self.settings.context:
            known = _listed(sorted(self.settings.context)) or "none"
            made = f'a table [context.{name}] with url = "https://..." makes one (docs/settings.md)'
            raise Usage(f"angelia.toml has no context {name}", hint=f"it has: {known}; {made}")
        return self.settings.context[name]

    @cached_property
    def _running_here(self) -> str | None:
        from angelia.runtime_file import read_runtime

        running = read_runtime(self.settings.data_dir)
        return None if running is None else running.url

    def _token_of_data_directory(self) -> str | None:
        # Only the server that runs on this data directory may see its token.
        if self._running_here is None or not _same_place(self.url, self._running_here):
            return None
        path = self.settings.data_dir / "admin.token"
        try:
            return _first_line(path) if path.is_file() else None
        except PermissionError:
            return None

    def _client(self, signer: Signer | None, token: str | None) -> Client:
        lean_httpx.load()
        from angelia.client import Client

        observer = self._tell if self.shared.verbose else None
        return self._open.enter_context(Client(self.url, signer, token, self.shared.timeout, observer))

    def _tell(self, trip: Trip) -> None:
        ended = trip.failure if trip.status is None else str(trip.status)
        request = f"  request {trip.request_id}" if trip.request_id else ""
        self.out.detail(f"{trip.method} {trip.path}  {ended}  {trip.seconds * 1000:.0f} ms{request}")

    def _notice(self, notice: Notice) -> None:
        if notice.kind == "fallback":  # comes with each message; printed once for a recipient
            if notice.text in self._fell_back:
                return
            self._fell_back.add(notice.text)
        self.out.note(f"warning: {notice.text}" if notice.kind == "warning" else notice.text)

    def ask_secret(self, prompt: str) -> str | None:
        """Asks for a secret, which is not shown while it is typed; None without a terminal."""
        return getpass.getpass(prompt, stream=self.out.stderr) if sys.stdin.isatty() else None

    def _ask(self, prompt: str) -> str:
        typed = self.ask_secret(prompt)
        if typed is None:
            raise Usage("a passphrase is needed, and there is no terminal to ask", hint="run it in a terminal")
        return typed


def _same_place(url: str, running: str) -> bool:
    """Whether a URL leads to the running server; this machine has several names for itself."""
    lean_httpx.load()
    import httpx

    from angelia.client.transport import is_loopback

    same_port = httpx.URL(url).port == httpx.URL(running).port
    return url == running or (same_port and is_loopback(url) and is_loopback(running))


def _first_line(path: Path) -> str:
    token = path.read_text("utf-8", "replace").strip().partition("\n")[0].strip()
    if not token.isascii() or not token.isprintable() or not token:
        raise Usage(f"{path} holds no token")
    return token


def _listed(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
