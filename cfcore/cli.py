"""The command line: every command is a function, declared once by its signature and docstring.

Packages add commands by entry points of the group ``cfcore.commands``: the name of the command, and
the function as ``module:name``. The module is imported to print a help text, so what takes long to
import is imported inside the function.
"""

import argparse
import inspect
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from importlib.metadata import entry_points
from types import NoneType
from typing import Literal, NoReturn, get_args, get_origin

import cfcore
from cfcore.checks import InputError, ScoreWarning, UndefinedMetricWarning
from cfcore.extras import EXTRAS, advice

_OPTION = re.compile(r"^    (\w+)(?: \((.*?)\))?: (.*(?:\n {8}.*)*)", re.MULTILINE)


class _Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the words name, and print the lines that it returns.

    Returns:
        The exit code: 0, or 2 if the input cannot be used, which one line on stderr explains.
    """
    words = sys.argv[1:] if argv is None else argv
    given = vars(parser(words).parse_args(words))
    try:
        with warnings.catch_warnings(record=True) as caught:
            for kind in (UndefinedMetricWarning, ScoreWarning):
                warnings.simplefilter("always", kind)
            for line in _call(given.pop("command"), given) or ():
                print(line)
            sys.stdout.flush()
        for warning in caught:
            print(f"cfcore: warning: {warning.message}", file=sys.stderr)
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (InputError, OSError, FloatingPointError, ModuleNotFoundError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name not in EXTRAS:
            raise
        print(f"cfcore: {_describe(error)}", file=sys.stderr)
        return 2
    return 0


def _describe(error: Exception) -> str:
    """One line about an error that the user can mend."""
    if isinstance(error, ModuleNotFoundError):
        return advice(error.name)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join("; ".join([str(error), *getattr(error, "__notes__", [])]).split())


def parser(words: Sequence[str] = ()) -> _Parser:
    """The command that the words begin with and its options, or else all commands."""
    about = "Counterfactual marginalisation: robustness of classifiers to nuisances."
    root = _Parser(prog="cfcore", description=about)
    root.add_argument("--version", action="version", version=f"cfcore {cfcore.__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    found = {entry.name: entry for entry in entry_points(group="cfcore.commands")}
    if not found:
        root.error("no command is registered: install cfcore again, pip install --editable .")
    for name in words[:1] if words and words[0] in found else found:
        function = found[name].load()
        text = inspect.getdoc(function).partition("\n\nArgs:")[0]
        line = text.partition("\n")[0].rstrip(".").replace("%", "%%")
        command = commands.add_parser(name, help=line[0].lower() + line[1:], description=text)
        command.set_defaults(command=function)
        _add_options(command, function)
    return root


def _add_options(command: _Parser, thing: Callable, start: object = None) -> None:
    """Add the parameters of a function, or the fields of a dataclass with the values of one.

    Parameters are words, keyword-only ones options: ``bool`` a flag, ``Literal`` a choice, a
    sequence as many words as one likes, and a dataclass an option for each of its fields. The
    docstring up to ``Args:`` is the description, its first line the help, and each line of
    ``Args:`` the help of an option. In parentheses after the name of an option stands what a help
    text calls its value, and the short form of the option if it has one.
    """
    helps = {name: rest for name, *rest in _OPTION.findall(inspect.getdoc(thing))}
    for name, parameter in inspect.signature(thing, eval_str=True).parameters.items():
        kind, default = parameter.annotation, getattr(start, name, parameter.default)
        if is_dataclass(kind):
            _add_options(command, kind, default)
            continue
        words, text = helps[name][0].split(), " ".join(helps[name][1].split())
        settings, flags = _reading(kind), [name]
        if default is not parameter.empty:
            settings["default"] = argparse.SUPPRESS  # the function knows it
        if parameter.kind is parameter.KEYWORD_ONLY or is_dataclass(thing):
            flags = [*(word for word in words if word[0] == "-"), f"--{name.replace('_', '-')}"]
            settings["required"] = default is parameter.empty
        elif default is not parameter.empty:
            settings["nargs"] = "*"
        if shown := tuple(word for word in words if word[0] != "-"):
            settings["metavar"] = shown if len(shown) > 1 else shown[0]
        if default not in (parameter.empty, None, ()) and default is not False:
            listed = default if isinstance(default, tuple) else [default]
            text = f"{text.rstrip('.')} (default: {' '.join(map(str, listed))})"
        command.add_argument(*flags, help=text.replace("%", "%%"), **settings)


def _reading(kind: type) -> dict[str, object]:
    """How words become a value of a type, for ``add_argument``.

    Example:
        >>> _reading(int | None)
        {'type': <class 'int'>}
    """
    parts = [part for part in get_args(kind) if part is not NoneType]
    if kind is bool:
        return {"action": "store_true"}
    if get_origin(kind) is Literal:
        return {"choices": parts}
    if get_origin(kind) is Sequence:
        if get_origin(parts[0]) is tuple:
            return {"action": "append", "nargs": len(get_args(parts[0]))}
        return {"action": "extend", "nargs": "+", "type": parts[0]}
    return _reading(parts[0]) if parts else {"type": kind}


def _call(function: Callable, given: Mapping[str, object]) -> Iterable[object] | None:
    """Call a function with the words that were given; all others are its defaults."""
    values = {}
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if is_dataclass(parameter.annotation):
            own = {field.name for field in fields(parameter.annotation)} & given.keys()
            values[name] = replace(parameter.default, **{field: given[field] for field in own})
        elif name in given:
            values[name] = given[name]
    return function(**values)


if __name__ == "__main__":
    sys.exit(main())
