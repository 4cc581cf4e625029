"""Matrix products in the full precision of their inputs.

Accelerators round f32 inputs of a product to 10 or 7 bits of mantissa unless told otherwise: too coarse for normal
equations, and coarser than the residuals that incomplete Cholesky tells apart.
"""

from functools import partial

import jax.numpy as jnp

matmul = partial(jnp.matmul, precision="highest")
einsum = partial(jnp.einsum, precision="highest")
