"""Packages that only some functions need."""

import importlib
from typing import Any


def need(module: str, extra: str) -> Any:
    """Import a module, or say which extra of this package brings it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise ImportError(f"this needs {package}. Install it: pip install 'kbpjax[{extra}]'") from error
