"""What is not installed with the package itself, and the extra that brings it."""

from importlib import import_module

# Modules by the name that is imported; the extras are those of pyproject.toml.
EXTRAS = {
    "zuko": "generator",
    "monai": "predictors",
    "PIL": "datasets",
    "openpyxl": "datasets",
    "IPython": "book",
    "ipykernel": "book",
    "jupytext": "book",
    "matplotlib": "book",
    "myst_nb": "book",
    "nbformat": "book",
    "papermill": "book",
    "psutil": "book",
    "seaborn": "book",
    "traitlets": "book",
    "zmq": "book",
}


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
