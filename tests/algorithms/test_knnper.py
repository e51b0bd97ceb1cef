"""kNN-Per against its ends: the global model, and scikit-learn's neighbours on the same features."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

import coterie as ct

LOCAL = ct.LocalSGD(steps=5, lr=0.3, batch_size=8)


def runs(fed64, task, lam, neighbours=10):
    knn = ct.fit(ct.KNNPer(lam=lam, neighbours=neighbours, local=LOCAL), fed64, task, rounds=8, alone=False)
    return knn, ct.fit(ct.FedAvg(LOCAL), fed64, task, rounds=8, alone=False)


def test_without_memory_it_predicts_like_the_global_model(fed64, task):
    knn, average = runs(fed64, task, 0.0)
    for client in fed64.clients:
        x, _ = fed64.test(client)
        with torch.no_grad():
            torch.testing.assert_close(knn.model(client)(x), average.model(client)(x).log_softmax(-1))
    np.testing.assert_allclose(knn.evaluate()["log_loss"], average.evaluate()["log_loss"], rtol=1e-9)


@pytest.mark.parametrize("neighbours", [1, 3, 10])
def test_with_memory_alone_it_is_scikit_learns_neighbours_on_the_features(fed64, task, neighbours):
    knn, average = runs(fed64, task, 1.0, neighbours)
    scores = knn.evaluate()["accuracy"]
    for client in fed64.clients:
        (x, y), (x_test, y_test) = fed64.train(client), fed64.test(client)
        body = average.model(client)[:-1]
        with torch.no_grad():
            features, near = body(x).numpy(), body(x_test).numpy()
            got = knn.model(client)(x_test).exp().numpy()
        sklearn = KNeighborsClassifier(min(neighbours, len(y)), weights=lambda d: np.exp(-d)).fit(features, y.numpy())
        want = np.zeros_like(got)
        want[:, sklearn.classes_] = sklearn.predict_proba(near)
        np.testing.assert_allclose(got, np.maximum(want, 1e-6), rtol=1e-6, atol=1e-9)
        assert scores[client] == pytest.approx((got.argmax(1) == y_test.numpy()).mean())  # evaluation is the same model


def test_in_between_it_mixes_probabilities(fed64, task):
    parts = [runs(fed64, task, lam)[0] for lam in (0.0, 0.3, 1.0)]
    for client in list(fed64.clients)[:4]:
        x, _ = fed64.test(client)
        with torch.no_grad():
            far, mixed, near = (p.model(client)(x).exp() for p in parts)
        torch.testing.assert_close(mixed, 0.3 * near + 0.7 * far, rtol=0, atol=3e-6)  # up to the clipping


def test_what_it_cannot_do_is_said(numbers, number_task):
    with pytest.raises(ct.errors.ConfigError, match="class"):
        ct.fit(ct.KNNPer(), numbers, number_task, rounds=1)
    with pytest.raises(ct.errors.ConfigError, match="lam"):
        ct.KNNPer(lam=1.5)


def test_a_loaded_client_predicts_as_before_and_never_without_its_samples(fed64, task, tmp_path):
    knn, _ = runs(fed64, task, 1.0, 3)
    knn.save(tmp_path)
    client = fed64.clients[0]
    x, _ = fed64.test(client)
    with torch.no_grad():
        again = ct.Result.load(tmp_path, federation=fed64).model(client)(x)
        torch.testing.assert_close(again, knn.model(client)(x))
    with pytest.raises(ct.errors.ConfigError, match="federation="):
        ct.Result.load(tmp_path).model(client)


def test_a_predictor_without_a_name_in_the_registry_says_so_when_it_is_needed(fed64, task, tmp_path, monkeypatch):
    knn, _ = runs(fed64, task, 1.0, 3)
    monkeypatch.setattr("coterie.learning.predictors.PREDICTORS", {})
    knn.save(tmp_path)
    with pytest.raises(ct.errors.ConfigError, match=r"'NearestNeighbours'.*no such name"):
        ct.Result.load(tmp_path, federation=fed64).model(fed64.clients[0])
