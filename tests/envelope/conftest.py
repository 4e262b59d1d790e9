"""Where published vectors are, and how many of their cases ran."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

BESIDE_THE_CHECKOUT = Path(__file__).parents[3] / "shared" / "vectors"


@pytest.fixture(scope="session")
def outside_vectors() -> Path:
    """The directory with files of Wycheproof, ACVP and others; they are large, so they are not part of the checkout."""
    if named := os.environ.get("ANGELIA_VECTORS"):
        assert Path(named).is_dir(), f"ANGELIA_VECTORS names {named}, which is no directory"
        return Path(named)
    if not BESIDE_THE_CHECKOUT.is_dir():
        pytest.skip("outside vectors (set ANGELIA_VECTORS)")
    return BESIDE_THE_CHECKOUT


@pytest.fixture
def ran(record_property: Callable[[str, object], None]) -> Callable[[str, int], None]:
    """Say how many cases of a set ran; the run's last lines tell their sum."""

    def say(name: str, cases: int) -> None:
        print(f"{name}: {cases:,} cases")
        assert cases > 0
        record_property("vectors", cases)

    return say
