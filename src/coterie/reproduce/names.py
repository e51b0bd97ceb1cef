"""The names of all experiments, and the module of coterie.reproduce that holds each."""

from __future__ import annotations

EXPERIMENTS: dict[str, str] = {  # name → module with its EXPERIMENT, or module:NAME
    "means": "means",
    "bernoulli": "bernoulli",
    "elections": "elections",
    "mixtures": "mixtures",
    "regression": "regression",
    "personal-mnist": "personal:MNIST",
    "personal-femnist": "personal:FEMNIST",
    "personal-femnist-15": "personal:FEMNIST_15",
    "personal-labels": "personal:LABELS",
    "personal-features": "personal:FEATURES",
    "personal-concept": "personal:CONCEPT",
    "personal-sizes": "personal:SIZES",
    "private-adaped": "private_adaped",
    "private-fedem": "private_fedem",
    "private-means": "private_means",
    "histograms-blogs": "histogram_table:BLOGS",
    "histograms-reviews": "histogram_table:REVIEWS",
    "histograms-synthetic": "private_histograms",
    "defection-free": "defection_free",
    "market": "market",
    "pricing": "pricing",
    "private-composition": "private",
    "advice": "advice",
    "advice-synthetic": "advice:SYNTHETIC",
    "logistic": "logistic",
    "mixed-models": "mixed_models:LME4",
    "coverage": "mixed_models:COVERAGE",
}
