"""Robust aggregators: `aggregate=TrimmedMean(2)` wherever an algorithm averages clients' individual replies. Also
Threshold-Clustering and its radius rules. Users know this room as `ct.robust`."""

from coterie.aggregation.rules import (
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
from coterie.base.lazy import attach

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

__getattr__, __dir__, __all__ = attach(__name__, __file__)  # the rest of `__init__.pyi` is imported when first used
__all__ += ["AGGREGATORS"]
