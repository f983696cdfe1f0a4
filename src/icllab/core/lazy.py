"""Names that import their module when first used, so that ``import icllab`` costs nothing."""

import importlib
import sys
from collections.abc import Callable, Iterable, Mapping

from icllab.core.errors import unknown


def attach(
    package: str, names: Mapping[str, str] | None = None, modules: Iterable[str] = ()
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """``__getattr__, __dir__, __all__`` of a package.

    Args:
        package: The package's ``__name__``.
        names: public name -> dotted submodule (relative to the package) that defines it.
        modules: Submodules that are public as such.
    """
    names, modules = dict(names or {}), tuple(modules)
    public = sorted({*names, *modules})

    def __getattr__(name: str) -> object:
        if name in names:
            value = getattr(importlib.import_module(f"{package}.{names[name]}"), name)
        elif name in modules:
            value = importlib.import_module(f"{package}.{name}")
        else:
            # hasattr, copy and pickle probe for dunder names: for them a plain AttributeError.
            message = str(unknown(f"name in {package}:", name, public))
            raise AttributeError(message, name=name, obj=sys.modules[package])
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public})

    return __getattr__, __dir__, public
