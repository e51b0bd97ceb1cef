"""Algorithm 1 of Ozkara et al. with clustering before the first use of the centres (E10).

Posterior means lie in the hull of the centres, and the new centres are means of those: where groups overlap the hull shrinks
from round to round, to a point (E11).
"""

from __future__ import annotations

import numpy as np

from coterie.estimation.client_sums import ClientSums
from coterie.estimation.conventions import Array
from coterie.estimation.mixtures import MixtureMeans


class PrintedMixtureMeans(MixtureMeans):
    """θ_i starts as X̄_i; then the server clusters the θ_i and the clients take posterior means, for `max_iter` rounds."""

    def _expect_maximise(self, sums: ClientSums, noise: Array) -> None:
        rng = np.random.default_rng(self.random_state)
        estimates, before = sums.means, np.full((self.clusters, sums.dimension), np.inf)
        still = self.tol * np.sqrt(noise.max() + self.component_variance_)
        for t in range(1, self.max_iter + 1):
            self.n_iter_ = t
            self._cluster(estimates, rng)
            _, estimates = self._posterior(sums.means, noise)
            centers = self.centers_[np.lexsort(self.centers_.T)]
            if np.abs(centers - before).max() <= still:
                break
            before = centers
