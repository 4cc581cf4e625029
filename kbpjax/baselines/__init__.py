"""What kernel belief propagation is compared with, over the same graphs, evidence and beliefs.

`discrete`: states and tables. `gaussian`: joint Gaussians. `pairwise`: potentials as functions, or learned densities,
for `mixture` (nonparametric) and `particle` belief propagation. `density`: what those learn.
"""

from kbpjax.baselines import density as density
from kbpjax.baselines import discrete as discrete
from kbpjax.baselines import gaussian as gaussian
from kbpjax.baselines import mixture as mixture
from kbpjax.baselines import pairwise as pairwise
from kbpjax.baselines import particle as particle
