"""Doorways for the tests of what monitors ask."""

from __future__ import annotations

from doorways import dead_hot_tier, dead_ledger, make

__all__ = ["dead_hot_tier", "dead_ledger", "make"]
