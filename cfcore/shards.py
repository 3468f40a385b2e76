"""Finished parts of a long computation: on disk, and over several processes."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, distributed

from cfcore.checks import InputError
from cfcore.files import check_writable, write_atomically
from cfcore.fingerprint import fingerprint
from cfcore.marks import check_place, label, marked

_Names = Sequence[str]
_HEADER = 1024  # bytes of a shard beside its logits, at most


@dataclass(frozen=True)
class Processes:
    """The processes that share a computation: this one's number, their count, its device."""

    rank: int
    size: int
    device: torch.device

    @classmethod
    def current(cls, device: torch.device) -> "Processes":
        """Join the processes that ``torchrun`` started; alone without it."""
        if int(os.environ.get("WORLD_SIZE", "1")) == 1:
            return cls(0, 1, device)
        if not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(distributed.get_rank(), distributed.get_world_size(), device)

    def gather(self, part: Tensor, total: int) -> Tensor:
        """All rows of a tensor of which process r holds rows r, r + size, r + 2 size, ...

        Given the rows of this process, shape (G, n, C), every process gets all, (G, total, C).
        """
        if self.size == 1:
            return part
        padded = part.new_zeros(part.shape[0], -(-total // self.size), part.shape[2])
        padded[:, : part.shape[1]] = part
        parts = [torch.empty_like(padded, device=self.device) for _ in range(self.size)]
        distributed.all_gather(parts, padded.to(self.device))
        return torch.stack(parts, dim=2).flatten(1, 2)[:, :total].cpu()


class Shards:
    """The finished shards of one process of one job, in a folder.

    Each shard carries a seal: a hash of the job, of the images of its patients and of its own
    content. A shard that was damaged, moved here from another job, or made of images that are
    others now is refused by its name.

    The folder is made if need be; without one nothing is kept. A job is given by the fingerprints
    of its parts, by what they are, and a folder with shards of another job is refused. ``half``
    says whether some shards were computed on a GPU, in half precision.
    """

    def __init__(
        self, folder: Path | None, job: Mapping[str, str], processes: Processes, restricted: _Names
    ) -> None:
        self.folder, self.job, self.restricted = folder, fingerprint(dict(job)), restricted
        self.names = f"shard-{processes.rank}-of-{processes.size}-{{:05d}}.safetensors"
        self.half = processes.device.type == "cuda"
        if folder is None:
            return
        path = folder / "job.json"
        try:
            note = json.loads(path.read_bytes()) if path.is_file() else {"job": {}, "half": False}
            before, half = dict(note["job"]), bool(note["half"])
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{path}: the file is damaged; remove it to go on") from None
        changed = [name for name in job if before.get(name) != job[name]]
        if changed and path.is_file() and any(folder.glob("shard-*")):
            raise InputError(
                f"{path}: the shards are of another job: {' and '.join(changed)} changed since; "
                "choose another folder, or remove this one to begin again"
            )
        self.half |= half and not changed
        if changed or self.half != half:
            check_place(path, restricted)
            check_writable(folder)
            note = {"job": dict(job), "half": self.half} | marked(restricted)
            write_atomically(path, json.dumps(note).encode())

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / self.names.format(number)

    def _seal(self, part: Tensor, images: str) -> Tensor:
        """What shows that a shard is whole and made of these images, shape (32,), uint8."""
        seal = bytearray.fromhex(fingerprint(self.job, images, part))
        return torch.frombuffer(seal, dtype=torch.uint8)

    def has(self, number: int) -> bool:
        """Whether a shard is finished."""
        return self.folder is not None and self.path(number).is_file()

    def read(self, number: int, shape: tuple[int, ...], images: str) -> Tensor:
        """A finished shard, refused unless of this shape and of images with this fingerprint."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        try:
            found = load(self.path(number).read_bytes())
            part, seal = found["logits"], found["seal"]
            if tuple(part.shape) == shape and torch.equal(seal, self._seal(part, images)):
                return part
        except (SafetensorError, KeyError):
            pass
        why = "the shard is damaged, or its images are not what they were; remove it to go on"
        raise InputError(f"{self.path(number)}: {why}")

    def check_writable(self, shape: tuple[int, ...]) -> None:
        """Refuse to begin with a shard of some shape for which there is no room."""
        if self.folder is not None:
            check_writable(self.folder, 4 * math.prod(shape) + _HEADER)

    def write(self, number: int, part: Tensor, images: str) -> None:
        """Keep a finished shard, made of images with this fingerprint."""
        from safetensors.torch import save

        if self.folder is not None:
            sealed = {"logits": part.contiguous(), "seal": self._seal(part, images)}
            write_atomically(self.path(number), save(sealed, metadata=label(self.restricted)))
