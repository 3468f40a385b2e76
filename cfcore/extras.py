"""What is not installed with the package itself, and the extra that brings it."""

from importlib import import_module

_BROUGHT = {
    "generator": "zuko",
    "predictors": "monai",
    "datasets": "PIL openpyxl",
    "tables": "pyarrow",
    "report": "matplotlib",
    "standardise": "sklearn threadpoolctl",
    "book": "IPython ipykernel jupytext matplotlib_inline myst_nb nbformat papermill psutil "
    "seaborn traitlets zmq",
}
EXTRAS = {module: extra for extra, modules in _BROUGHT.items() for module in modules.split()}
"""The extra of pyproject.toml that brings a module, by the name that is imported."""


def advice(module: str) -> str:
    """What to do about a module that is not installed.

    Example:
        >>> print(advice("zuko"))
        zuko is not installed, which this needs: pip install 'cfcore[generator]'
    """
    return f"{module} is not installed, which this needs: pip install 'cfcore[{EXTRAS[module]}]'"


def needs(module: str) -> None:
    """Import a module of an extra, or say which extra brings it.

    Raises:
        ModuleNotFoundError: If it is not installed; the message names the extra.
    """
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise ModuleNotFoundError(advice(module), name=module) from None
