"""Names that import their module when first used, so that ``import icllab`` costs nothing."""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable

from icllab.core.errors import unknown


def attach(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__, __dir__, __all__`` of the package with this ``__name__``.

    Public are its modules, and what its ``__init__.py`` imports under ``if TYPE_CHECKING:``. Type checkers run these
    imports; at run time each is made when its name is first used.
    """
    package_module = sys.modules[package]
    statements = ast.parse(pkgutil.get_data(package, "__init__.py") or b"").body
    declarations = [node for branch in statements if isinstance(branch, ast.If) for node in branch.body]
    imports = [node for node in declarations if isinstance(node, ast.ImportFrom)]
    names = {alias.name: str(node.module) for node in imports for alias in node.names}
    modules = {
        module.name for module in pkgutil.iter_modules(package_module.__path__) if not module.name.startswith("_")
    }
    public = sorted({*names, *modules})

    def __getattr__(name: str) -> object:
        if name in names:
            value = getattr(importlib.import_module(names[name]), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            # hasattr, copy and pickle probe for dunder names: for them a plain AttributeError.
            raise AttributeError(str(unknown(f"name in {package}:", name, public)), name=name, obj=package_module)
        setattr(package_module, name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(package_module), *public})

    return __getattr__, __dir__, public
