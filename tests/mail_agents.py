"""Agents that send and receive mail over HTTP with keys in memory, as correct or faulty clients do."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx
import msgspec

from angelia.envelope import json_form, sealing
from angelia.envelope.ids import KeyType
from angelia.envelope.kem import KemPublicKey
from angelia.envelope.media_type import MEDIA_TYPE
from angelia.envelope.receipts import Receipt, ReceiptStatus, receipt_document, sign_receipt
from angelia.envelope.sealing import Letter
from angelia.envelope.wire import Envelope
from http_agents import Server
from keyholder import KeyHolder, now_ms

NO_LIMITS = {"keys": "off", "bundles": "off", "register": "off", "identity": "off", "send": "off", "receive": "off"}


@dataclass
class Got:
    """One message in the answer to a poll."""

    envelope: Envelope
    replay_key: str
    lease_token: str
    attempt: int


class Correspondent(KeyHolder):
    """An agent with keys in memory that uses the mail routes."""

    def letter(self, to: KeyHolder, body: bytes = b"hello", **how: Any) -> Letter:
        values = {
            "recipient": to.handle,
            "key": to.kem[KeyType.XWING].public,
            "body": body,
            "message_id": uuid.uuid4(),
            "created_at": now_ms(),
            **how,
        }
        return Letter(**values)

    def seal(self, to: KeyHolder, body: bytes = b"hello", **how: Any) -> Envelope:
        return sealing.seal(self.letter(to, body, **how), self.handle, self.pair)

    async def mail(self, server: Server, envelope: Envelope) -> httpx.Response:
        """Sends an envelope in its JSON form."""
        return await server.send_signed(self, "POST", "/v1/messages", json_form.encode(envelope))

    async def mail_binary(self, server: Server, wire: bytes) -> httpx.Response:
        headers = {**self.signed("POST", "/v1/messages", wire), "content-type": MEDIA_TYPE}
        return await server.request("POST", "/v1/messages", content=wire, headers=headers)

    async def sent(self, server: Server, to: KeyHolder, body: bytes = b"hello", **how: Any) -> Envelope:
        """Seals and sends a message that the server must accept."""
        envelope = self.seal(to, body, **how)
        answer = await self.mail(server, envelope)
        assert answer.status_code == 201, answer.text
        return envelope

    async def poll(self, server: Server, **query: Any) -> list[Got]:
        text = "&".join(f"{name}={value}" for name, value in query.items())
        answer = await self.get(server, f"/v1/messages?{text}" if text else "/v1/messages")
        assert answer.status_code == 200, answer.text
        return [
            Got(
                json_form.decode(msgspec.json.encode(one["envelope"]), 2_592_000),
                one["replay_key"],
                one["lease_token"],
                one["attempt"],
            )
            for one in answer.json()["messages"]
        ]

    def opened(self, got: Got) -> bytes:
        return sealing.unseal(got.envelope, self.kem[KeyType.XWING])

    def receipt(
        self,
        envelope: Envelope,
        status: ReceiptStatus = ReceiptStatus.DELIVERED,
        at: int | None = None,
        reason: str = "",
    ) -> Receipt:
        header = envelope.header
        return sign_receipt(
            Receipt(
                status=status,
                replay_key=envelope.replay_key,
                message_id=header.message_id,
                sender_nhi=header.sender_nhi,
                recipient_nhi=self.handle,
                time_ms=now_ms() if at is None else at,
                signer_id=self.pair.public.signer_id,
                reason=reason,
            ),
            self.pair,
        )

    async def ack(self, server: Server, *messages: Got, receipts: list[Receipt] | None = None) -> list[dict[str, Any]]:
        items = [{"replay_key": one.replay_key, "lease_token": one.lease_token} for one in messages]
        for item, receipt in zip(items, receipts or [], strict=False):
            item["receipt"] = receipt_document(receipt)  # type: ignore[assignment]
        answer = await self.post(server, "/v1/messages/acknowledge", {"acks": items})
        assert answer.status_code == 200, answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    async def nack(self, server: Server, *messages: Got, **how: Any) -> list[dict[str, Any]]:
        items = [{"replay_key": one.replay_key, "lease_token": one.lease_token, **how} for one in messages]
        answer = await self.post(server, "/v1/messages/nack", {"nacks": items})
        assert answer.status_code == 200, answer.text
        results: list[dict[str, Any]] = answer.json()["results"]
        return results

    async def receipt_of(self, server: Server, replay_key: str) -> dict[str, Any]:
        answer = await self.get(server, f"/v1/receipts/{replay_key}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def kem_key(holder: KeyHolder) -> KemPublicKey:
    return holder.kem[KeyType.XWING].public


def random_key() -> str:
    return uuid.uuid4().hex * 2


def key_id_of(holder: KeyHolder) -> UUID:
    return kem_key(holder).key_id
