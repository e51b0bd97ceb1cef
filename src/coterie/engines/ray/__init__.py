"""Clients on a Ray cluster: `engine.py` (what `fit` uses), `pool.py` (actors and their repair), `states.py` (the driver's
view of clients' private states), `shard.py` (what runs in an actor)."""

from coterie.engines.ray.engine import RayEngine

__all__ = ["RayEngine"]
