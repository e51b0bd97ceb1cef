"""Engines run client functions: `local` (vectorised, in process), `loop` (one client at a time) and `ray` (a cluster)."""

from coterie.engines.base import Engine, Env
from coterie.engines.loop import LoopEngine
from coterie.engines.ray import RayEngine
from coterie.engines.vectorised import LocalEngine

ENGINES = {"local": LocalEngine, "loop": LoopEngine, "ray": RayEngine}

__all__ = ["ENGINES", "Engine", "Env", "LocalEngine", "LoopEngine", "RayEngine"]
