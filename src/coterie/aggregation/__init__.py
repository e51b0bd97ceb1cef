"""Robust aggregators: `aggregate=TrimmedMean(2)` wherever an algorithm averages clients' individual replies."""

from coterie.aggregation.rules import (
    Aggregator,
    Bucketing,
    CentredClipping,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NearestNeighbourMixing,
    TrimmedMean,
)
from coterie.aggregation.use import aggregated, for_group, with_aggregate

AGGREGATORS: dict[str, type] = {
    "mean": Mean,
    "median": Median,
    "trimmed_mean": TrimmedMean,
    "krum": Krum,
    "multi_krum": MultiKrum,
    "geometric_median": GeometricMedian,
    "centred_clipping": CentredClipping,
    "bucketing": Bucketing,
    "nearest_neighbour_mixing": NearestNeighbourMixing,
}

__all__ = [
    "AGGREGATORS",
    "Aggregator",
    "Bucketing",
    "CentredClipping",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "MultiKrum",
    "NearestNeighbourMixing",
    "TrimmedMean",
    "aggregated",
    "for_group",
    "with_aggregate",
]
