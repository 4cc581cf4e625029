"""What has no better place: files written whole or not at all, optional packages, products in full precision."""

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import jax.numpy as jnp

# Accelerators round f32 inputs of a product to 10 or 7 bits of mantissa unless told otherwise: too coarse for normal
# equations, and coarser than the residuals that incomplete Cholesky tells apart.
matmul = partial(jnp.matmul, precision="highest")
einsum = partial(jnp.einsum, precision="highest")


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file beside `path` that takes its place only if the block ends well."""
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
    """Import a module, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}. Install it: pip install 'kbpjax[{extra}]'") from error
