"""A pretend accelerator: real values under the rules of a real one, on any machine.

Tensors on the device ``pretend`` wrap ordinary ones. Mixing them with CPU tensors raises, as it
does on a GPU, and everything for which the host would have to wait is counted. So a test can show
that code is free of hidden transfers and synchronisations; it cannot show that CUDA works. It
rests on private parts of torch, whose version is pinned; tests on the ``meta`` device do not.
"""

from dataclasses import dataclass, field
from types import TracebackType

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretend"
aten = torch.ops.aten
Operation = torch._ops.OpOverload
_setup_privateuseone_for_python_backend(NAME)

COPIES = {aten._to_copy.default, aten.copy_.default}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
WAITING = {
    aten._local_scalar_dense.default,
    aten._unique2.default,
    aten.bincount.default,
    aten.equal.default,
    aten.is_nonzero.default,
    aten.item.default,
    aten.masked_select.default,
    aten.nonzero.default,
    aten.repeat_interleave.Tensor,
    aten.unique_consecutive.default,
    aten.unique_dim.default,
}


@dataclass
class Log:
    """What crossed between host and device, and for what the host had to wait."""

    to_device: int = 0
    to_host: int = 0
    waits: list[str] = field(default_factory=list)

    def clear(self) -> None:
        self.to_device, self.to_host, self.waits = 0, 0, []

    @property
    def quiet(self) -> bool:
        return not (self.to_device or self.to_host or self.waits)


class PretendTensor(Tensor):
    """A tensor that claims to be elsewhere."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls: type, inner: Tensor) -> "PretendTensor":
        wrapper = Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=torch.device(NAME, 0),
        )
        wrapper.inner = inner
        return wrapper

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"Pretend({self.inner})"

    @classmethod
    def __torch_dispatch__(
        cls,
        function: Operation,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        raise RuntimeError("pretend tensors work only inside `with Accelerator():`")


class Accelerator(TorchDispatchMode):
    """Inside ``with Accelerator() as log:`` there is a device called ``pretend``."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log()

    def __enter__(self) -> Log:
        self.before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self.log

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        torch._C._set_only_lift_cpu_tensors(self.before)
        super().__exit__(kind, value, trace)

    def __torch_dispatch__(
        self,
        function: Operation,
        types: tuple,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> object:
        # Under inference_mode the wrappers must still be ordinary tensors.
        with torch.inference_mode(False), torch.no_grad():
            return self.perform(function, args, kwargs or {})

    def perform(self, function: Operation, args: tuple, kwargs: dict) -> object:
        leaves = tree_leaves((args, kwargs))
        here = [leaf for leaf in leaves if isinstance(leaf, PretendTensor)]
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        there = [leaf for leaf in tensors if not isinstance(leaf, PretendTensor)]
        target = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
        on_device = bool(here) if target is None else target.type == NAME

        self.watch(function, args, here)
        if function is aten.copy_.default:
            return self.copy(*args, **kwargs)
        if function not in COPIES and here:
            forbid_mixing(function, args, there)
        if target is not None and (here or there):
            self.log.to_device += on_device and not here
            self.log.to_host += bool(here) and not on_device
        if on_device and kwargs.get("generator") is not None:
            raise RuntimeError(f"a generator on the CPU cannot draw on {NAME}")

        kwargs = {name: value for name, value in kwargs.items() if name != "pin_memory"}
        result = function(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
        known = {id(tensor.inner): tensor for tensor in here}  # in-place results keep their wrapper
        return tree_map(lambda leaf: wrap(leaf, known), result) if on_device else result

    def watch(self, function: Operation, args: tuple, here: list[Tensor]) -> None:
        by_mask = function in INDEXING and any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
        if here and (function in WAITING or by_mask):
            self.log.waits.append(f"{function} by a mask" if by_mask else str(function))

    def copy(self, target: Tensor, source: Tensor, *rest: object, **options: object) -> Tensor:
        kinds = isinstance(source, PretendTensor), isinstance(target, PretendTensor)
        self.log.to_host += kinds == (True, False)
        self.log.to_device += kinds == (False, True)
        unwrap(target).copy_(unwrap(source), *rest, **options)
        return target


def forbid_mixing(function: Operation, args: tuple, there: list[Tensor]) -> None:
    """CPU scalars may meet device tensors, and CPU indices may index them; nothing else."""
    if function in INDEXING:
        mixed = not isinstance(args[0], PretendTensor)
    else:
        mixed = any(tensor.ndim for tensor in there)
    if mixed:
        raise RuntimeError(f"{function} mixes tensors on {NAME} and on the CPU")


def unwrap(leaf: object) -> object:
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return leaf.inner if isinstance(leaf, PretendTensor) else leaf


def wrap(leaf: object, known: dict[int, PretendTensor]) -> object:
    if not isinstance(leaf, Tensor) or isinstance(leaf, PretendTensor):
        return leaf
    return known[id(leaf)] if id(leaf) in known else PretendTensor(leaf)
