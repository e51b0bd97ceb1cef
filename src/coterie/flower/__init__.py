"""Deployment on real clients with Flower: one ServerApp and one ClientApp for every algorithm.

`server.py` runs the usual training loop with `SitesEngine`; `site.py` answers its messages with the local engine, on rows
and states that stay where they are. These files know nothing of Flower: a message is bytes (`wire.py`). `apps.py` puts both
behind Flower's public interface; only `worker.py` needs Flower's private modules.
"""

from coterie.flower.engine import Failure, SitesEngine
from coterie.flower.job import Job
from coterie.flower.server import serve
from coterie.flower.site import Site

__all__ = ["Failure", "Job", "Site", "SitesEngine", "serve"]
