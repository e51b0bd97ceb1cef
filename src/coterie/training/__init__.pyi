"""The public names of `ct.training` and where each lives. `coterie.base.lazy` reads this file as a table."""

from coterie.evidence.participation import Coalition as Coalition
from coterie.evidence.participation import Participation as Participation
from coterie.training.clustering_settings import clustering_for as clustering_for
from coterie.training.clustering_settings import gradient_constants as gradient_constants
from coterie.training.cohorts import Everyone as Everyone
from coterie.training.cohorts import FixedSize as FixedSize
from coterie.training.cohorts import Poisson as Poisson
from coterie.training.conformance import check as check
from coterie.training.evaluation import Evaluation as Evaluation
from coterie.training.guarded import Guarded as Guarded
from coterie.training.guarded import fit_guarded as fit_guarded
from coterie.training.number_of_clusters import Choice as Choice
from coterie.training.number_of_clusters import choose_clusters as choose_clusters
from coterie.training.result import Result as Result
from coterie.training.run import Run as Run
from coterie.training.run import fit as fit
from coterie.training.sweeps import Grid as Grid
from coterie.training.sweeps import Seeds as Seeds
from coterie.training.sweeps import fit_seeds as fit_seeds
from coterie.training.sweeps import grid as grid
from coterie.training.tables import table as table
from coterie.training.tensorboard import TensorBoard as TensorBoard
from coterie.training.tuning import best_of as best_of
