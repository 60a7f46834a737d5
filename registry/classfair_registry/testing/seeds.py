"""Random numbers as functions of names, so that nothing depends on what was drawn before."""

from __future__ import annotations

import hashlib

import torch


def derive(*names: object) -> int:
    """Return a 63-bit seed that is a function of the names alone."""
    digest = hashlib.sha256(repr(names).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(*names: object) -> torch.Generator:
    """Return a CPU generator seeded by the names."""
    return torch.Generator().manual_seed(derive(*names))


def seed_torch(*names: object) -> None:
    """Seed torch's generators by the names; a CUDA device's too, if one is in use."""
    # Directly: torch.manual_seed keeps a stack trace for a CUDA device that nobody may ever use.
    torch.default_generator.manual_seed(derive(*names))
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(derive(*names))
