"""One hash of all that a computation depends on: weights, tables, code, and what the code reaches.

A function is hashed by its code, its defaults, the variables that it closes over and the globals
that it names, and so is every function that these lead to; an object by its class and its fields.
Code of installed packages is known by name only. What no hash can see, such as a file that a
function reads when it is called, is found out by computing something again.
"""

import argparse
import contextlib
import dis
import functools
import hashlib
import logging
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (str, bytes, int, float, complex, type(None), np.generic, torch.dtype, torch.device)
_LIBRARIES = tuple({sysconfig.get_path(n) for n in ("stdlib", "platstdlib", "purelib", "platlib")})
_TORCH = frozenset(vars(nn.Module())) - {"training", "_parameters", "_buffers", "_modules"}
_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_NAMED += (types.WrapperDescriptorType, types.MethodWrapperType, types.ClassMethodDescriptorType)
_WRAPPERS = (types.MethodType, staticmethod, classmethod, property, functools.cached_property)
_WRAPPERS += (functools.partial, functools.partialmethod, functools._lru_cache_wrapper)
_WRAPPED = ("__func__", "__self__", "__wrapped__", "fget", "func", "args", "keywords")


def fingerprint(*things: object) -> str:
    """A hash of tensors, networks, tables, functions and plain values, however they are nested.

    Example:
        >>> fingerprint({"a": torch.ones(2)}) == fingerprint({"a": torch.ones(2)})
        True
        >>> fingerprint({"a": torch.ones(2)}) == fingerprint({"a": torch.zeros(2)})
        False
        >>> add = lambda bias: lambda x: x + bias
        >>> fingerprint(add(1)) == fingerprint(add(1)), fingerprint(add(1)) == fingerprint(add(2))
        (True, False)
    """
    digest, seen = hashlib.sha256(), {}
    for thing in things:
        _update(digest, thing, seen)
    return digest.hexdigest()


def _update(digest: "hashlib._Hash", thing: object, seen: dict[int, tuple[int, object]]) -> None:
    digest.update(f"|{type(thing).__name__}:".encode())
    if isinstance(thing, _PLAIN):
        digest.update(repr(thing).encode())
    elif id(thing) in seen:  # a cycle, or the same network twice
        digest.update(f"#{seen[id(thing)][0]}".encode())
    else:
        seen[id(thing)] = len(seen), thing  # kept alive, so that no other object gets its id
        content = _content(thing)
        digest.update(content if isinstance(content, bytes) else b"")
        for part in () if isinstance(content, bytes) else content:
            _update(digest, part, seen)


def _content(thing: object) -> bytes | Iterable[object]:
    """What a thing is made of: bytes, or further things."""
    if isinstance(thing, _NAMED) and _installed(thing):
        return [getattr(thing, "__module__", None), thing.__qualname__]
    for kinds, parts in _PARTS.items():
        if isinstance(thing, kinds):
            return parts(thing)
    if type(thing).__module__.startswith("pandas.") and hasattr(thing, "to_csv"):
        return thing.to_csv().encode()
    if type(thing).__module__.partition(".")[0] in sys.stdlib_module_names:
        return [repr(thing)] if " at 0x" not in repr(thing) else []
    return [type(thing), _fields(getattr(thing, "_orig_mod", thing))]  # of a compiled network


def _fields(thing: object) -> dict[str, object]:
    """Fields and slots of an object; of a network not what torch keeps about it, but its hooks."""
    if isinstance(thing, torch.jit.ScriptModule):
        return {"code": thing.code, "weights": dict(thing.state_dict())}
    fields = dict(getattr(thing, "__dict__", {}))
    for own in type(thing).__mro__:
        for name, slot in vars(own).items():
            if isinstance(slot, types.MemberDescriptorType):
                with contextlib.suppress(AttributeError):  # a slot that is still empty
                    fields[name] = slot.__get__(thing)
    if isinstance(thing, nn.Module):
        hooks = [list(fields[name].values()) for name in _HOOKS]
        fields = {n: v for n, v in fields.items() if n not in _TORCH} | {"hooks": hooks}
    return fields


def _of_tensor(thing: Tensor) -> bytes:
    """Type, shape and values; of a tensor without plain memory, such as a sparse one, no values."""
    kind = f"{thing.dtype}{tuple(thing.shape)}".encode()
    try:
        return kind + thing.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    except (RuntimeError, TypeError, ValueError):
        return kind


def _of_class(thing: type) -> list[object]:
    """The name, the bases, and the functions and constants of a class of the user's own."""
    names = [name for name in vars(thing) if not name.startswith(("__", "_abc_"))]
    names += [n for n, v in vars(thing).items() if isinstance(v, types.FunctionType)]
    return [thing.__qualname__, thing.__bases__, {name: vars(thing)[name] for name in names}]


def _of_function(thing: types.FunctionType) -> list[object]:
    """Code, defaults and attributes, and the variables that are read and not set.

    What a function sets is its memory, and no part of what it is.
    """
    codes = list(_codes(thing.__code__))
    steps = [step for code in codes for step in dis.get_instructions(code)]

    def named(*operations: str) -> set[str]:
        return {step.argval for step in steps if step.opname in operations}

    memory, reached = named("STORE_GLOBAL", "STORE_DEREF"), {}
    for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # a cell that is still empty
            reached |= {} if name in memory else {name: cell.cell_contents}
    known = sorted((named("LOAD_GLOBAL") - memory) & set(thing.__globals__))
    found = {name: thing.__globals__[name] for name in known}
    found |= {name: sys.modules[name] for name in sorted(named("IMPORT_NAME") & set(sys.modules))}
    attributes = {name for code in codes for name in code.co_names}
    for name, value in found.items():
        reached |= {name: value} | dict(_inside(name, value, attributes))
    return [thing.__code__, thing.__defaults__, thing.__kwdefaults__, vars(thing), reached]


def _inside(name: str, module: object, attributes: set[str]) -> Iterator[tuple[str, object]]:
    """What of the user's own modules, and of modules in them, a function may mean."""
    if isinstance(module, types.ModuleType) and not _installed(module):
        for attribute in sorted(attributes & set(vars(module))):
            place, value = f"{name}.{attribute}", vars(module)[attribute]
            yield place, value
            yield from _inside(place, value, attributes - {attribute})


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A code object, and those of the functions that are defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _installed(thing: object) -> bool:
    """Whether a module, class or function belongs to Python or to an installed package."""
    home = sys.modules.get(thing.__module__) if isinstance(thing, type) else thing
    file = getattr(home, "__file__", None)  # builtins have none
    if isinstance(thing, types.FunctionType):
        file = thing.__code__.co_filename
    own = getattr(thing, "__module__", None) == "__main__"
    return not own and (not file or file.startswith(_LIBRARIES))


# By kind, the first that fits.
_PARTS: Mapping[object, Callable[[object], bytes | Iterable[object]]] = {
    Tensor: _of_tensor,
    np.ndarray: lambda t: (
        list(t) if t.dtype == object else f"{t.dtype}{t.shape}".encode() + t.tobytes()
    ),
    Mapping: lambda t: [part for item in t.items() for part in item],
    (list, tuple, deque): list,
    (types.SimpleNamespace, argparse.Namespace): lambda t: list(vars(t).items()),
    (set, frozenset): lambda t: sorted(text for text in map(repr, t) if " at 0x" not in text),
    type: _of_class,
    types.FunctionType: _of_function,
    types.CodeType: lambda t: [t.co_code, t.co_names, t.co_consts],
    types.ModuleType: lambda t: [t.__name__],
    _WRAPPERS: lambda t: [getattr(t, name, None) for name in _WRAPPED],
    logging.Logger: lambda t: [t.name],
}
