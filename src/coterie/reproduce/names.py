"""The names of all experiments, and the module of coterie.reproduce that holds each as EXPERIMENT."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {  # name → module of coterie.reproduce with its EXPERIMENT
    "bernoulli": "bernoulli",
    "elections": "elections",
    "pricing": "pricing",
    "ifca-linear": "ifca_linear",
    "ifca-mnist": "ifca_mnist",
    "ifca-cifar": "ifca_cifar",
    "ifca-femnist": "ifca_femnist",
    "failures": "failures",
    "quadratics": "quadratics",
    "werner-mnist": "werner_mnist",
    "cifar-private": "cifar_private",
    "disjoint-labels": "disjoint_labels",
    "byzantine": "byzantine",
    "inner-rounds": "inner_rounds",
    "ifca-starts": "ifca_starts",
    "lopsided": "lopsided",
    "attacks": "attacks",
}
