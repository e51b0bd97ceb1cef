"""Engines run client functions: `local` (vectorised, in process) and `loop` (one client at a time)."""

from coterie.engines.base import Engine, Env
from coterie.engines.loop import LoopEngine
from coterie.engines.vectorised import LocalEngine

ENGINES = {"local": LocalEngine, "loop": LoopEngine}

__all__ = ["ENGINES", "Engine", "Env", "LocalEngine", "LoopEngine"]
