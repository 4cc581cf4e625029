"""The loopy example as the package sees it: its graph, samples and observations, and the model learned from them."""

import functools

import numpy as np

import kbpjax as kbp
from tests import reference

TWIN_GRAPH, SAMPLES, OBSERVATIONS = reference.loopy_example()
GRAPH = kbp.Graph.from_edges(TWIN_GRAPH.edges, 7, edge_type=TWIN_GRAPH.edge_type, node_type=TWIN_GRAPH.node_type)
Y = np.random.default_rng(9).normal(size=7)

twin_model = functools.cache(reference.loopy_model)


@functools.cache
def loopy_model():
    """Return the package's model with the settings of the twin's."""
    return kbp.fit(
        kbp.pool(GRAPH, SAMPLES, OBSERVATIONS),
        kernel={v: kbp.RBF(b) for v, b in reference.LOOPY_BANDWIDTHS.items()},
        obs_kernel={v: kbp.RBF(b) for v, b in reference.LOOPY_OBS_BANDWIDTHS.items()},
        rule=kbp.ConstantTime(eps=reference.LOOPY_SETTINGS["eps"], max_rank=reference.LOOPY_SETTINGS["max_rank"]),
        ridge=reference.LOOPY_SETTINGS["ridge"],
        floor=reference.LOOPY_SETTINGS["floor"],
    )
