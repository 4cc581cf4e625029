"""Signatures of classes for the reference, for griffe, which reads sources and does not run them.

An `equinox.Module` is a dataclass, which sources do not show. This takes order, kinds and presence of defaults from the
imported class, and writes types and defaults as the sources do.
"""

import importlib
import inspect
import re
from typing import Any

from griffe import (
    Attribute,
    Class,
    Expr,
    ExprBinOp,
    ExprCall,
    ExprKeyword,
    ExprName,
    ExprTuple,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: ParameterKind.var_keyword,
}
READABLE = {"Numbers": "ArrayLike"}
"""Names of types that the reference shows by another name."""
SHARED = re.compile(r"^    (\w+(?:, \w+)+): (.*(?:\n {8,}.*)*)", re.MULTILINE)
"""Parameters or fields with one description, as in "senders, receivers: ends of each edge"."""

RETURNED = re.compile(r"^(Returns:\n +)", re.MULTILINE)
"""What stands before the description of a result, of which griffe takes the text before a colon for its type."""


class Signatures(Extension):
    """Give each class of the package the signature of its constructor."""

    def on_package(self, *, pkg: Module, **kwargs: Any) -> None:
        """Change all modules of a package."""
        for module in [pkg, *modules_of(pkg)]:
            home = importlib.import_module(module.path)
            for member in module.members.values():
                if isinstance(member, Class) and "__init__" not in member.members:
                    member.set_member("__init__", constructor(member, getattr(home, member.name), pkg))
            tidy(module)


def modules_of(package: Module) -> list[Module]:
    """Return all modules inside a package."""
    inner = [m for m in package.members.values() if isinstance(m, Module) and m.name != "__main__"]
    return inner + [deeper for module in inner for deeper in modules_of(module)]


def constructor(member: Class, kind: type, package: Module) -> Function:
    """Return the function that makes an object of a class."""
    try:
        given = list(inspect.signature(kind).parameters.values())
    except (ValueError, TypeError):  # of exceptions, which C code makes, and of metaclasses
        given = [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]
    own = Parameter("self", kind=ParameterKind.positional_or_keyword)
    parameters = [as_written(parameter, kind, package) for parameter in given]
    return Function("__init__", parent=member, parameters=Parameters(own, *parameters), returns="None")


def as_written(parameter: inspect.Parameter, kind: type, package: Module) -> Parameter:
    """Return a parameter with its type and default as the source has them."""
    annotation: Any = None
    default: Any = None if parameter.default is inspect.Parameter.empty else repr(parameter.default)
    source = declaration(parameter.name, kind, package)
    if source is not None:
        annotation = source.annotation
        default = default and (written_default(source) or default)
    return Parameter(parameter.name, annotation=annotation, kind=KINDS[parameter.kind], default=default)


def declaration(name: str, kind: type, package: Module) -> Attribute | Parameter | None:
    """Return the field, or the parameter of an inherited constructor, of this name."""
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != package.name:
            continue
        found = package[f"{base.__module__}.{base.__qualname__}".partition(".")[2]]
        constructor = found.members.get("__init__")
        if constructor is not None and constructor.lineno and name in constructor.parameters:
            return constructor.parameters[name]
        if isinstance(found.members.get(name), Attribute):
            return found.members[name]
    return None


def written_default(source: Attribute | Parameter) -> str | Expr | None:
    """Return the default of a field or parameter; None where it has to be taken from the class."""
    if isinstance(source, Parameter):
        return source.default
    if not isinstance(source.value, ExprCall) or not str(source.value.function).endswith("field"):
        return source.value
    given = {a.name: a.value for a in source.value.arguments if isinstance(a, ExprKeyword)}
    return given.get("default")


def tidy(scope: Object) -> None:
    """Change the docstrings and the signatures of a module or class."""
    for member in scope.members.values():
        if isinstance(member, Class):
            tidy(member)
        if isinstance(member, Function):
            rename_types(member)
        if isinstance(member, Class | Function) and member.docstring is not None:
            member.docstring.value = SHARED.sub(separate, RETURNED.sub(r"\1: ", member.docstring.value))


def separate(shared: re.Match) -> str:
    """Return a description of each parameter or field by itself."""
    return "\n".join(f"    {name}: {shared[2]}" for name in shared[1].split(", "))


def rename_types(function: Function) -> None:
    """Show types by their readable names in a signature."""
    for annotation in [function.returns, *(parameter.annotation for parameter in function.parameters)]:
        if not isinstance(annotation, Expr):
            continue
        keep_axes(annotation)
        for part in annotation.iterate(flat=True):
            if isinstance(part, ExprName):
                part.name = READABLE.get(part.name, part.name)


def keep_axes(annotation: Expr) -> None:
    """Write axes as the source does: griffe reads the "sample *dim" of jaxtyping as a product."""
    if isinstance(annotation, ExprTuple):
        annotation.elements = [
            repr(str(part).replace(" * ", " *")) if isinstance(part, ExprBinOp) else part
            for part in annotation.elements
        ]
    for part in annotation.iterate(flat=False):
        if isinstance(part, Expr) and part is not annotation:  # a name holds itself
            keep_axes(part)
