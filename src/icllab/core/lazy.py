"""Names that import their module when first used, so that ``import icllab`` costs nothing."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable

from icllab.core.errors import unknown
from icllab.core.signatures import write_signature


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__, __dir__`` of the package with this ``__name__``, whose ``__all__`` is its public face.

    A name resolves to what ``__init__.py`` imports under ``if TYPE_CHECKING:``, or to a module of the package. Type
    checkers run these imports; at run time each is made when its name is first used. What ``__all__`` leaves out can
    be imported by specialists, is not listed, and may change with any version.
    """
    module = sys.modules[package]
    statements = ast.parse(pkgutil.get_data(package, "__init__.py") or b"").body
    branches = [node for branch in statements if isinstance(branch, ast.If) for node in branch.body]
    imports = [node for node in branches if isinstance(node, ast.ImportFrom)]
    sources = {alias.name: str(node.module) for node in imports for alias in node.names}
    submodules = {entry.name for entry in pkgutil.iter_modules(module.__path__) if not entry.name.startswith("_")}

    def __getattr__(name: str) -> object:
        if name in sources:
            value = getattr(importlib.import_module(sources[name]), name)
            if name in module.__all__:
                write_signature(value)
        elif name in submodules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            # hasattr, copy and pickle probe for dunder names: for them a plain AttributeError.
            message = str(unknown(f"name in {package}:", name, sorted({*sources, *submodules})))
            raise AttributeError(message, name=name, obj=module)
        setattr(module, name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*(name for name in vars(module) if name.startswith("__")), *module.__all__})

    return __getattr__, __dir__
