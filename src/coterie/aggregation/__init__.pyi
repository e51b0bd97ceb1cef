"""The public names of `ct.robust` and where each lives. `coterie.base.lazy` reads this file as a table."""

from coterie.aggregation.gradient_constants import Constants as Constants
from coterie.aggregation.gradient_constants import constants as constants
from coterie.aggregation.radius import Fixed as Fixed
from coterie.aggregation.radius import Percentile as Percentile
from coterie.aggregation.radius import Proof as Proof
from coterie.aggregation.radius import Theory as Theory
from coterie.aggregation.rules import Aggregator as Aggregator
from coterie.aggregation.rules import Bucketing as Bucketing
from coterie.aggregation.rules import CentredClipping as CentredClipping
from coterie.aggregation.rules import GeometricMedian as GeometricMedian
from coterie.aggregation.rules import Krum as Krum
from coterie.aggregation.rules import Mean as Mean
from coterie.aggregation.rules import Median as Median
from coterie.aggregation.rules import MultiKrum as MultiKrum
from coterie.aggregation.rules import NearestNeighbourMixing as NearestNeighbourMixing
from coterie.aggregation.rules import TrimmedMean as TrimmedMean
from coterie.aggregation.threshold import ThresholdClustering as ThresholdClustering
from coterie.aggregation.threshold import threshold_clustering as threshold_clustering
from coterie.aggregation.where_allowed import aggregated as aggregated
from coterie.aggregation.where_allowed import for_group as for_group
from coterie.aggregation.where_allowed import with_aggregate as with_aggregate

AGGREGATORS: dict[str, type]
