"""Small utilities: atomic file writes, optional packages, matrix products in full precision."""

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp

# By default, accelerators round f32 inputs of a product to 10 or 7 bits of mantissa. This is too coarse for normal
# equations, and coarser than the residuals that incomplete Cholesky must resolve.
matmul = partial(jnp.matmul, precision="highest")
einsum = partial(jnp.einsum, precision="highest")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `path` only if the block raises no exception."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def need(module: str, extra: str) -> Any:
    """Return an imported module, or raise ImportError with the extra of this package that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}. Install it: pip install 'kbpjax[{extra}]'") from error
