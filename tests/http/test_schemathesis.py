"""Requests made from the OpenAPI document, sound ones and unsound ones, are answered as the document says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from angelia.grouplog.model.frames import MEDIA
from http_agents import Server
from probe_edge import listening

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
schemathesis.serializer.alias(MEDIA, "application/octet-stream")
OFF = dict.fromkeys(("register", "who", "identity", "unproven"), "off")


@pytest.mark.parametrize("examples", [6, pytest.param(500, marks=[pytest.mark.fuzz, pytest.mark.timeout(1800)])])
async def test_every_operation_answers_as_documented(start, examples: int) -> None:
    # The whitelist keeps the requests that block addresses from ending the run.
    server: Server = await start(spool=True, limits=OFF, rate_limit_whitelist=("127.0.0.1",))
    agent = await server.register()
    token = await server.post("/v1/tokens", json={"role": "admin", "agent": agent.id}, headers=server.admin)
    bearer = {"authorization": f"Bearer {token.json()['token']}"}
    document = (await server.get("/openapi.json")).json()
    # Long polls and streams answer with what there is, as they do when a server is about to stop.
    server.application.stop_waiting()
    async with listening(server.application) as port:
        await asyncio.to_thread(_examine, document, f"http://localhost:{port}", bearer, examples)


def _examine(document: dict[str, Any], url: str, bearer: dict[str, str], examples: int) -> None:
    schema = schemathesis.openapi.from_dict(document)
    with requests.Session() as session:

        def validate(case: Any) -> None:
            case.call_and_validate(base_url=url, session=session, headers=bearer, checks=CHECKS)

        for found in schema.get_all_operations():
            operation = found.ok()
            typed = [body for body in operation.body if body.media_type != MEDIA]  # no bytes are of a wrong type
            unsound = [GenerationMode.NEGATIVE] if typed or operation.query else []
            for mode in (GenerationMode.POSITIVE, *unsound):
                cases = given(case=operation.as_strategy(generation_mode=mode))
                settings(
                    max_examples=examples,
                    derandomize=examples < 100,
                    deadline=None,
                    database=None,
                    phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )(cases(validate))()
