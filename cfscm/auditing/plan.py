"""The plan of an audit: a page of YAML, read, loaded and tried before anything is computed.

Every message names the key of the plan, or the file, row and column, that is to be mended. Paths
are relative to the folder of the plan. Nothing is unpickled, and nothing is written.
"""

import hashlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor, nn

from cfcore.cells import read_cells
from cfcore.checks import InputError, check_count, check_fraction, shown
from cfcore.extras import needs
from cfcore.generator import blaming, check_generator
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.patients import Patients
from cfscm.auditing.adapters import Adapted, load_generator, load_predictor
from cfscm.auditing.page import NUMBER, Page, nearest
from cfscm.learning import untrained

IMAGE = "image"
"""What the graph calls the image."""

_LEAST, _PATIENTS = {"train": 60, "audit": 20}, 12  # rows, and patients of either
_MOST = 1000  # worlds
_KEYS = {
    "title": str, "table": str, "images": str, "image": str, "patient": str, "size": int,
    "grey": bool, "graph": (dict, str), "labels": (str, list), "nuisances": dict, "q": (str, list),
    "effect": str, "predictors": dict, "generator": (str, dict), "rows": dict,
    "threshold": (*NUMBER, dict), "subgroups": list, "pictures": str, "seed": int,
    "replicates": int,
}  # fmt: skip
_NEEDED = ("table", "image", "graph", "labels", "nuisances", "predictors", "generator", "rows")
_PREDICTOR = {"load": str, "outputs": (str, list, dict), "input": dict, "scores": str}
_INPUT = {"channels": int, "size": int, "mean": (*NUMBER, list), "std": (*NUMBER, list)}
_DEFAULTS = {"effect": "direct", "threshold": 0.5, "subgroups": [], "pictures": "none"}
_DEFAULTS |= {"seed": 0, "replicates": 1000, "q": "uniform"}
_FILES = (".pt", ".pth", ".ts", ".pkl", ".safetensors", ".onnx")


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """What will be audited, all of it loaded and tried.

    Attributes:
        place: The file of the plan, for messages.
        given: What the file says.
        graph: The graph, in which the image has parents.
        data: All rows of the table, with the parents and labels that are read from images.
        train: The rows on which readers, and perhaps a generator, are trained.
        audited: The rows that are audited.
        nuisances: The values that are set, by variable.
        grid: The worlds and their probabilities.
        predictors: The predictors by name.
        outputs: The labels of their outputs.
        generator: The generator; None if it is to be trained.
        digests: Hashes of the files that were read.
    """

    place: str
    given: Mapping[str, Any]
    graph: CausalGraph
    data: Patients
    train: np.ndarray
    audited: np.ndarray
    nuisances: Mapping[str, list[float]]
    grid: Grid
    predictors: Mapping[str, Adapted]
    outputs: Mapping[str, list[str]]
    generator: object | None
    digests: Mapping[str, str]

    def get(self, key: str) -> Any:  # noqa: ANN401
        """What the plan says of a key, or what is done if it says nothing."""
        return self.given.get(key, _DEFAULTS.get(key))

    @property
    def budget(self) -> Mapping[str, float]:
        """How long a generator is trained; empty if it is not."""
        return {} if self.generator is not None else self.given["generator"]["train"]

    @property
    def variables(self) -> dict[str, Variable]:
        """What is read from images: the parents, then the labels that are none."""
        names = dict.fromkeys((*self.data.parents, *self.data.labels))
        return {name: _variable(self.graph, name) for name in names}

    def threshold(self, label: str) -> float:
        """Above which score a decision about a label is positive."""
        given = self.get("threshold")
        return given[label] if isinstance(given, dict) else given

    def words(self, name: str, value: float) -> str:
        """A value of a variable, as people say it."""
        known = self.variables[name].categories
        return known[int(value)] if known else f"{value:.4g}"


def read_plan(source: Path | str | Mapping[str, Any]) -> AuditPlan:
    """Read a plan and all that it names, and try it on some images.

    Args:
        source: The file; or what would be in it, with paths relative to the current folder.

    Raises:
        InputError: If anything in it cannot be right; the message names the key or the cell.
    """
    page = Page(source)
    page.check(page.given, _KEYS)
    for key in _NEEDED:
        if key not in page.given:
            page.refuse(key, "is missing; `cfcore plan TABLE` writes a plan to start from")
    page.choice("effect", "direct", "total")
    page.choice("pictures", "none", "local")
    return _Reading(page).plan()


def _variable(graph: CausalGraph, name: str) -> Variable:
    return graph[name] if name in graph else Variable(name, "binary")


class _Reading:
    """A plan while it is read, each part by those that were read before."""

    def __init__(self, page: Page) -> None:
        self.page, self.given, self.digests = page, page.given, {}
        file = page.file("table", self.given["table"])
        cells, self.digests["table"] = read_cells(file), _sha256(file)
        self.cells = replace(cells, frame=cells.frame.apply(_as_text))
        self.lines = self.cells.frame.index

    def plan(self) -> AuditPlan:
        """Read everything, in this order."""
        self.numbers()
        self.graph = self.read_graph()
        self.parents = list(self.graph.parents(IMAGE))
        self.labels = self.read_labels()
        frame = self.read_columns()
        self.train, self.audited = self.split()
        self.data = self.read_images(frame)
        self.check_enough()
        self.nuisances = dict(self.read_nuisances())
        grid, some = self.read_grid(), self.data.take(self.audited[: _LEAST["audit"]])
        predictors, outputs = {}, {}
        if not self.given["predictors"]:
            self.page.refuse("predictors", "name one or more, such as mine: classifier.pt")
        for name, given in self.given["predictors"].items():
            predictors[name], outputs[name] = self.read_predictor(name, given, some)
        made = grid, predictors, outputs, self.read_generator(some.take([0, 1])), self.digests
        rows = self.data, self.train, self.audited, self.nuisances
        return AuditPlan(self.page.place, self.given, self.graph, *rows, *made)

    def numbers(self) -> None:
        """Check numbers and thresholds."""
        for key, least in (("size", 16), ("seed", 0), ("replicates", 2)):
            with self.page.at(key):
                check_count(self.given.get(key, least), "it", least, 100_000)
        threshold = self.given.get("threshold", 0.5)
        for label, value in (threshold if isinstance(threshold, dict) else {"": threshold}).items():
            with self.page.at(f"threshold.{label}".rstrip(".")):
                check_fraction(value, "it")

    def read_graph(self) -> CausalGraph:
        """The graph; without an image in it, all variables are parents of the image."""
        given = source = self.given["graph"]
        if isinstance(given, str):
            source = self.page.file("graph", given)
        with self.page.at("graph"):
            if isinstance(given, dict):
                if not given or not all(isinstance(name, str) for name in given):
                    raise InputError(f"needs names, text in quotes, not {list(given)}")
                source = "# a graph\n" + yaml.safe_dump(given, sort_keys=False)
            graph = CausalGraph.from_yaml(source)
            if IMAGE not in graph:
                added = Variable(IMAGE, "continuous", range=(0.0, 1.0))
                graph = CausalGraph([*graph.values(), added], {**graph.edges, IMAGE: [*graph]})
            if not graph.parents(IMAGE):
                raise InputError(f"{IMAGE} has no parents")
        return graph

    def read_labels(self) -> list[str]:
        """The labels, of which each is binary and has a threshold."""
        given, threshold = self.given["labels"], self.given.get("threshold")
        labels = [given] if isinstance(given, str) else given
        if not labels or not all(isinstance(label, str) for label in labels):
            self.page.refuse("labels", f"is a column or a list of columns, not {given!r}")
        for label in labels:
            if labels.count(label) > 1:
                self.page.refuse("labels", f"{label!r} is there twice")
            if _variable(self.graph, label).kind != "binary":
                self.page.refuse("labels", f"{label!r} is not binary in the graph")
        if isinstance(threshold, dict) and set(threshold) != set(labels):
            self.page.refuse("threshold", f"is for {list(threshold)}, but the labels are {labels}")
        return labels

    def read_columns(self) -> pd.DataFrame:
        """The table with numbers in the columns of parents and labels, text in all others."""
        frame, header = self.cells.frame.reset_index(drop=True), self.cells.header
        named = [(key, self.given[key]) for key in ("image", "patient") if key in self.given]
        groups = self.given.get("subgroups", [])
        others = [("labels", name) for name in self.labels] + [("subgroups", n) for n in groups]
        for key, name in [*named, *others, *((f"graph.{n}", n) for n in self.parents)]:
            if name not in header:
                file = self.cells.path.name
                self.page.refuse(key, f"{file} has no column {name!r}; {nearest(name, header)}")
        for _, name in named:
            frame[name] = self.cells.filled(name)
        for name in groups:
            count = frame[name].nunique()
            if count > 20 and name not in self.parents:
                self.page.refuse("subgroups", f"{name!r} has {count} values, more than 20")
        for name in dict.fromkeys((*self.parents, *self.labels)):
            frame[name] = self.codes(_variable(self.graph, name))
        return frame

    def codes(self, variable: Variable) -> np.ndarray:
        """A column as numbers: codes of categories, by their names or as they are, or values."""
        name = variable.name
        text = self.cells.frame[name].str.strip()
        names = {category: float(code) for code, category in enumerate(variable.categories)}
        if variable.kind == "continuous":
            codes = pd.Series(self.cells.numbers(name), self.lines)
            bad = (codes < variable.range[0]) | (codes > variable.range[1])
            what = f"in the graph's range {list(variable.range)}"
        else:
            if not text.isin(names).any():
                names = {str(code): float(code) for code in variable.values}
            codes = text.map(names)
            bad, what = codes.isna(), f"one of {', '.join(variable.categories or names)}"
        if bad.any():
            line = self.lines[int(bad.to_numpy().argmax())]
            problem = f"{text[line]!r} is not {what}" if text[line] else "the cell is empty"
            more = f" ({bad.sum()} such cells; mend them, or leave their rows out)"
            self.blame(line, name, problem + more * int(bad.sum() > 1))
        return codes.to_numpy(np.float64)

    def blame(self, line: int, column: str, problem: str) -> None:
        """Refuse a cell of the table."""
        raise InputError(f"{self.cells.path}, row {line}, column {column}: {problem}")

    def split(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that train and those that are audited, which share no patient."""
        rows, column = self.given["rows"], self.given.get("patient")
        self.page.check(rows, {"train": str, "audit": str, "share": NUMBER}, "rows.")
        if ("train" in rows) == ("share" in rows) or {"share", "audit"} <= rows.keys():
            self.page.refuse("rows", "needs train: COLUMN == VALUE, or share: of the patients")
        who = np.array(self.cells.filled(column) if column else self.lines.astype(str))
        if "share" in rows:
            with self.page.at("rows.share"):
                share = check_fraction(rows["share"], "it")
            known = np.random.default_rng(self.given.get("seed", 0)).permutation(np.unique(who))
            train = np.isin(who, known[: round(len(known) * share)])
        else:
            train = self.matching("train")
        audited = self.matching("audit") if "audit" in rows else ~train
        both = np.isin(who, who[train]) & audited
        if both.any():
            first = int(both.argmax())
            other = int((train & (who == who[first])).argmax())
            places = f"rows {self.lines[other]} and {self.lines[first]} of {self.cells.path.name}"
            count = f"{len(np.unique(who[both]))} patients are in training and in audited rows"
            self.page.refuse("rows", f"{count}, such as {str(who[first])!r} ({places})")
        name = self.cells.frame[self.given["image"]].str.strip().to_numpy()
        twice = np.isin(name, name[train]) & audited
        if twice.any():
            line = self.lines[int(twice.argmax())]
            self.blame(line, self.given["image"], "the image is in a training row too")
        return np.flatnonzero(train), np.flatnonzero(audited)

    def matching(self, key: str) -> np.ndarray:
        """The rows in which a column has a value, as COLUMN == VALUE says."""
        given = self.given["rows"][key]
        parts = given.split("==")
        for i in range(1, len(parts)):
            column, value = ("==".join(some).strip() for some in (parts[:i], parts[i:]))
            if column in self.cells.header:
                text = self.cells.frame[column].str.strip()
                if not (text == value).any():
                    found = ", ".join(map(repr, text.unique()[:6]))
                    self.page.refuse(f"rows.{key}", f"no {column!r} is {value!r}, but {found}")
                return (text == value).to_numpy()
        known = nearest(parts[0].strip(), self.cells.header)
        raise InputError(
            f"{self.page.place}, rows.{key}: {given!r} is not COLUMN == VALUE; {known}"
        )

    def read_images(self, frame: pd.DataFrame) -> Patients:
        """The rows with their images, all of which are there and of one size."""
        given, root = self.given, self.cells.path.parent
        if "images" in given:
            root = self.page.file("images", given["images"])
        if root.suffix != ".npz":
            self.check_files(root)
        options = {"size": given.get("size"), "graph": self.graph, "patient": given.get("patient")}
        options |= {"parents": self.parents, "labels": self.labels, "root": root}
        try:
            data = Patients.from_table(frame, image=given["image"], **options)
            if given.get("grey"):
                own = data.parents, data.labels, data.patient
                data = Patients(_Grey(data), *own, columns=data.columns)
            shape = tuple(data[[0, len(data) - 1]].shape[2:])
        except InputError as error:
            if error.row is not None:
                self.blame(self.lines[error.row], error.column, error.problem)
            self.page.refuse("images", error)
        except (OSError, ValueError) as error:  # of a damaged archive
            self.page.refuse("images", error)
        if len(shape) != 2 or min(shape) < 16:
            self.page.refuse("images", f"need two sides of 16 pixels or more, not {shape}")
        return data

    def check_files(self, root: Path) -> None:
        """Refuse the first file that is missing, no image, or of another size, by its row."""
        needs("PIL")
        from PIL import Image

        first, column = None, self.given["image"]
        for line, name in self.cells.frame[column].str.strip().items():
            problem = ""
            try:
                with Image.open(root / name) as image:
                    first = first or image.size
                    if image.size != first and "size" not in self.given:
                        problem = (
                            f"{image.size} pixels, others {first}; say size: to make them equal"
                        )
            except FileNotFoundError:
                problem = "there is no such file"
            except (OSError, ValueError, Image.DecompressionBombError) as error:
                problem = f"is no image that can be read ({error})"
            if problem:
                self.blame(line, column, f"{root / name}: {problem}")

    def check_enough(self) -> None:
        """Refuse rows of which nothing can be learnt, or on which nothing can be tried."""
        for rows, what in ((self.train, "train"), (self.audited, "audit")):
            people = len({self.data.patient[row] for row in rows})
            if len(rows) < _LEAST[what] or people < _PATIENTS:
                least = f"{_LEAST[what]} of {_PATIENTS} patients are needed at least"
                self.page.refuse("rows", f"{len(rows)} rows to {what}, and {least}")
            for name, y in {**self.data.parents, **self.data.labels}.items():
                if y[rows].unique().numel() < 2 and (what == "train" or name in self.labels):
                    key = "labels" if name in self.labels else f"graph.{name}"
                    self.page.refuse(key, f"{name!r} has one value only in the rows to {what}")

    def read_nuisances(self) -> Iterator[tuple[str, list[float]]]:
        """The values to set, by variable."""
        if not self.given["nuisances"]:
            self.page.refuse("nuisances", "name one variable or more, such as view: all")
        for name, given in self.given["nuisances"].items():
            key = f"nuisances.{name}"
            if name in self.labels:
                self.page.refuse(key, "is a label too: no label is its own nuisance")
            if name not in self.parents:
                known = nearest(name, self.parents)
                self.page.refuse(key, f"is no parent of the image in the graph; {known}")
            variable, own = self.graph[name], self.data.parents[name].double().numpy()
            with self.page.at(key):
                values = _values(given, variable, own[self.audited])
                values = np.float32(values).tolist()  # as generators see them
                if len(set(values)) < max(2, len(values)):
                    raise InputError(f"needs two values or more, each once, not {given!r}")
                for value in values if variable.values else ():
                    if value not in own[self.train]:
                        words = (variable.categories or variable.values)[int(value)]
                        raise InputError(f"no training row has {words!r}")
            yield name, values

    def read_grid(self) -> Grid:
        """The worlds and their probabilities."""
        worlds, q = math.prod(map(len, self.nuisances.values())), self.given.get("q", "uniform")
        if worlds > _MOST:
            self.page.refuse("nuisances", f"make {worlds} worlds, more than {_MOST}")
        with self.page.at("q"):
            if isinstance(q, str) and q not in ("uniform", "empirical"):
                raise InputError(f"is uniform, empirical or {worlds} numbers, not {q!r}")
            given = "uniform" if q == "empirical" else q
            grid = Grid.product(self.nuisances, given, graph=self.graph)
            return grid.empirical(self.data.take(self.audited)) if q == "empirical" else grid

    def read_predictor(self, name: object, given: object, some: Patients) -> tuple[Adapted, list]:
        """A predictor, tried on some images, and the labels of its outputs."""
        key, page = f"predictors.{name}", self.page
        given = {"load": given} if isinstance(given, str) else given
        page.check(given, _PREDICTOR, f"{key}.")
        page.check(given.get("input", {}), _INPUT, f"{key}.input.")
        if not isinstance(name, str) or ":" in name or "load" not in given:
            page.refuse(key, "needs a name without a colon, and load: what it is loaded from")
        chosen, form = given.get("outputs", self.labels), given.get("input", {})
        named = [chosen] if isinstance(chosen, str) else list(chosen)
        for label in named:
            if label not in self.labels or named.count(label) > 1:
                page.refuse(f"{key}.outputs", f"{label!r} is none of {self.labels}, or there twice")
        numbers = list(chosen.values()) if isinstance(chosen, dict) else len(named)
        with page.at(f"{key}.outputs"):
            for number in numbers if isinstance(chosen, dict) else [len(named)]:
                check_count(number, "it", 0 if isinstance(chosen, dict) else 1)
        with page.at(f"{key}.input"):
            _check_input(form, some[[0]].shape[1])
        with page.at(key):
            scores = given.get("scores", "logits")
            if scores not in ("logits", "probabilities"):
                raise InputError(f"scores are logits or probabilities, not {scores!r}")
            loaded = self.load(key, given["load"], load_predictor)
            reads = getattr(getattr(loaded, "variable", None), "name", None)
            if reads and named != [reads]:
                raise InputError(f"predicts {reads!r}, not {' and '.join(map(repr, named))}")
            made = Adapted(loaded, numbers, probabilities=scores == "probabilities", **form).eval()
            self.try_out(made, some, "scores" in given)
        return made, named

    def try_out(self, predictor: Adapted, some: Patients, told: bool) -> None:
        """Refuse a predictor that fails on some images, or seems to give something else."""
        x = some[range(len(some))]
        with torch.inference_mode(), blaming("it", x):
            predictor(x[:2], {name: values[:2] for name, values in some.parents.items()})
            out = predictor(x, some.parents)
        if not out.isfinite().all():
            raise InputError(f"gives {out[~out.isfinite()][0]} for an image")
        if not told and out.min() >= 0 and out.max() <= 1:
            found = f"gives {out.min():.3g} to {out.max():.3g} for {len(x)} images"
            raise InputError(f"{found}; say scores: probabilities, or scores: logits if they are")

    def load(self, key: str, where: str, load: Callable) -> object:
        """What the plan names, a file or MODULE:NAME; its hash or its words are remembered."""
        if str(self.page.folder) not in sys.path:
            sys.path.insert(0, str(self.page.folder))  # where the user's plug-in is
        if Path(where).suffix in _FILES:
            path = self.page.folder / where
            if not path.is_file():
                raise InputError(f"there is no file {path}")
            self.digests[key] = _sha256(path)
            return load(path, self.graph)
        if ":" not in where:
            raise InputError(f"{where!r} is neither MODULE:NAME nor a file *.pt or *.safetensors")
        self.digests[key] = where
        return load(where, self.graph)

    def read_generator(self, two: Patients) -> object | None:
        """The generator, tried on two images; None if it is to be trained."""
        given, x = self.given["generator"], two[[0, 1]]
        if isinstance(given, dict):
            self.page.check(given, {"train": dict}, "generator.")
            self.page.check(
                given.get("train"), {"minutes": NUMBER, "steps": int}, "generator.train."
            )
            if not given["train"] or min(given["train"].values()) <= 0:
                self.page.refuse("generator.train", "needs minutes: or steps:, more than 0")
            with self.page.at("generator.train"):
                untrained(self.graph, IMAGE, x[:1], None, 0)
            return None
        with self.page.at("generator"), torch.inference_mode():
            generator = self.load("generator", given, load_generator)
            check_generator(generator)
            if isinstance(generator, nn.Module):
                generator.eval()
            if self.given.get("effect") == "total" and not hasattr(generator, "act"):
                raise InputError("has no method act(), which total effects need")
            with blaming("it", x):
                noise = generator.abduct(x, two.parents, index=two.index)
                drawn = generator.predict(noise, two.parents)
            found = tuple(drawn.shape) if isinstance(drawn, Tensor) else type(drawn).__name__
            if found != tuple(x.shape) or not drawn.isfinite().all():
                raise InputError(f"draws {found} for images {tuple(x.shape)}, or no numbers")
        return generator


def _as_text(column: pd.Series) -> pd.Series:
    """A column as text; numbers, of a file that knows them, as one writes them."""
    if column.dtype.kind not in "iuf":
        return column
    return column.map(lambda value: "" if value != value else shown(value)).astype(str)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class _Grey:
    """Images in colour, reduced to luminance."""

    data: Patients

    def __call__(self, rows: np.ndarray) -> Tensor:
        x = self.data[rows]
        share = x.new_tensor([0.299, 0.587, 0.114]) if x.shape[1] == 3 else x.new_ones(1)
        return torch.einsum("bc...,c->b...", x, share)[:, None]

    def fingerprint(self, rows: np.ndarray) -> str:
        return self.data.take(rows).fingerprint()


def _values(given: object, variable: Variable, own: np.ndarray) -> list[float]:
    """The values to set: listed, all, so many evenly spaced, or quantiles of the audited rows."""
    if given == "all" and variable.values:
        return list(map(float, variable.values))
    if isinstance(given, list):
        for value in given:
            if isinstance(value, bool) or not isinstance(value, (str, *NUMBER)):
                raise InputError(f"{value!r} is neither text, in quotes, nor a number")
            if isinstance(value, str) and not variable.categories:
                raise InputError(f"{value!r}: {variable.name} has no categories in the graph")
        return [variable.check(value) for value in given]
    quantiles = isinstance(given, dict) and list(given) == ["quantiles"]
    if (quantiles or isinstance(given, int)) and variable.kind == "continuous":
        count = check_count(given["quantiles"] if quantiles else given, "it", 2, 50)
        if quantiles:
            return np.quantile(own, (np.arange(count) + 0.5) / count).tolist()
        return np.linspace(*np.quantile(own, [0.05, 0.95]), count).tolist()
    ways = "a number of values or {quantiles: 4}" if variable.kind == "continuous" else "all"
    raise InputError(f"is a list of values, or {ways}, not {given!r}")


def _check_input(given: Mapping[str, Any], seen: int) -> None:
    """Refuse what images of so many channels cannot be turned into."""
    channels = given.get("channels", seen)
    for key, value in given.items():
        values = value if isinstance(value, list) else [value]
        if not all(isinstance(v, NUMBER) and (v > 0 or key == "mean") for v in values):
            raise InputError(f"{key} is a number, and positive, not {value!r}")
        if key in ("mean", "std") and len(values) not in (1, channels):
            raise InputError(f"{key} has {len(values)} numbers for {channels} channels")
    if channels != seen and seen != 1:
        raise InputError(f"the images have {seen} channels, and only one can become {channels}")
