"""The names of all experiments, and the module of coterie.reproduce that holds each as EXPERIMENT."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {  # name → module of coterie.reproduce with its EXPERIMENT
    "bernoulli": "bernoulli",
    "elections": "elections",
    "pricing": "pricing",
    "ifca-linear": "ifca_linear",
    "ifca-mnist": "ifca_mnist",
    "failures": "failures",
    "quadratics": "quadratics",
    "inner-rounds": "inner_rounds",
}
