"""What all estimators share: the words for what is missing or malformed."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import coterie as ct


@pytest.mark.parametrize(
    "use",
    [
        lambda: ct.GaussianMeans().interval(),
        lambda: ct.MixtureMeans().interval(),
        lambda: ct.BernoulliRates().interval(),
        lambda: ct.LinearModels().predict([[1.0]], [0]),
        lambda: ct.LinearModels().interval(),
        lambda: ct.LinearModels().score([[1.0]], [0], [0]),
        lambda: ct.LogisticModels().predict([[1.0]], [0]),
        lambda: ct.LogisticModels().predict_proba([[1.0]], [0]),
        lambda: ct.LogisticModels().interval(),
        lambda: ct.HistogramMixture().personalise([[1.0]]),
        lambda: ct.HistogramMixture().shared_weight(np.ones(1)),
    ],
)
def test_unfitted_estimators_say_so_as_scikit_learn_does(use):
    with pytest.raises(NotFittedError, match="not fitted yet"):
        use()


@pytest.mark.parametrize("bad", ["a", [1.0], -1.0, np.inf])
def test_a_variance_must_be_a_number(bad):
    with pytest.raises(ValueError, match="noise_variance must be a finite number"):
        ct.GaussianMeans(noise_variance=bad).fit(np.ones((3, 2)))
