"""The plan of an audit: a page of YAML, read, loaded and tried before anything is computed.

Every message names the key of the plan, or the file, row and column, that is to be mended. Paths
are relative to the folder of the plan. Nothing is unpickled, and nothing is written.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import yaml
from torch import Tensor, nn

from cfcore.checks import InputError, check_count, check_fraction
from cfcore.extras import needs
from cfcore.fingerprint import fingerprint
from cfcore.generator import blaming, check_protocol, counterfactuals
from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid
from cfcore.marginalise import marginalise
from cfcore.marks import announce, marked, sources_in
from cfcore.patients import Patients, decode
from cfcore.predictor import check_device
from cfscm.auditing.adapters import SCORES, Adapted, load_generator, load_predictor, on_device
from cfscm.auditing.page import NUMBER, Page, nearest, read_text
from cfscm.learning import untrained

IMAGE = "image"
"""What the graph calls the image."""

_LEAST, _PATIENTS = {"train": 60, "audit": 20}, 12  # rows, and patients of either
_MOST, _GROUPS = 1000, 50  # worlds, and values of a variable that make subgroups
_APART = 6_000  # training rows that are enough for readers and generator, each with its own
_KEYS = {
    "title": str, "source": str, "table": str, "images": str, "image": str, "patient": str,
    "size": int, "grey": bool, "graph": (dict, str), "labels": (str, list),
    "nuisances": dict, "q": (str, list), "effect": str, "predictors": dict,
    "generator": (str, dict), "rows": dict, "threshold": (*NUMBER, dict),
    "subgroups": list, "pictures": str, "seed": int, "replicates": int, "device": str,
    "tolerance": NUMBER,
}  # fmt: skip
_NEEDED = ("table", "image", "graph", "labels", "nuisances", "predictors", "generator", "rows")
_PREDICTOR = {"load": str, "outputs": (str, list, dict), "input": dict, "scores": str}
_INPUT = {"channels": int, "size": int, "mean": (*NUMBER, list), "std": (*NUMBER, list)}
_DEFAULTS = {"effect": "direct", "threshold": 0.5, "subgroups": [], "pictures": "none"}
_DEFAULTS |= {"q": "uniform", "grey": False, "seed": 0, "replicates": 1000, "device": "cpu"}
_FILES = (".pt", ".pth", ".ts", ".pkl", ".safetensors", ".onnx")


def read_plan(source: Path | str | Mapping[str, Any]) -> "AuditPlan":
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
    return AuditPlan(page)


def _variable(graph: CausalGraph, name: str) -> Variable:
    return graph[name] if name in graph else Variable(name, "binary")


class AuditPlan:
    """What will be audited, all of it loaded and tried, each part by those that were read before.

    Attributes:
        place: The file of the plan, for messages.
        given: What the file says.
        graph: The graph, in which the image has parents.
        parents, labels: The names of the columns that are read from images.
        data: All rows of the table.
        train: The rows on which readers, and perhaps a generator, are trained.
        audited: The rows that are audited.
        nuisances: The values that are set, by variable.
        grid: The worlds and their probabilities.
        predictors: The predictors by name.
        outputs: The labels of their outputs.
        generator: The generator; None if it is to be trained.
        digests: Hashes of the files that were read.
    """

    def __init__(self, page: Page) -> None:
        self._page, self.place, self.given, self.digests = page, page.place, page.given, {}
        self._check_numbers()
        file = page.file("table", self.given["table"])
        self._cells, self.digests["table"] = read_text(file), _sha256(file)
        self._lines = self._cells.frame.index
        self.graph = self._read_graph()
        self.parents = list(self.graph.parents(IMAGE))
        self.labels = self._read_labels()
        frame = self._read_columns()
        self.train, self.audited = self._split()
        self.data = self._read_images(frame)
        self._restrict([self.given["source"]] if "source" in self.given else [])
        self._check_enough()
        self.nuisances = dict(self._read_nuisances())
        self._check_groups()
        self.grid, self.predictors, self.outputs = self._read_grid(), {}, {}
        some = self.data.take(self.audited[: _LEAST["audit"]])
        for name, given in self.given["predictors"].items():
            self.predictors[name], self.outputs[name] = self._read_predictor(name, given, some)
        if not self.predictors:
            page.refuse("predictors", "name one or more, such as mine: classifier.pt")
        self.generator = self._read_generator(some.take([0, 1]))

    def get(self, key: str) -> Any:  # noqa: ANN401
        """What the plan says of a key, or what is done if it says nothing."""
        return self.given.get(key, _DEFAULTS.get(key))

    @property
    def budget(self) -> Mapping[str, float]:
        """How long a generator is trained; empty if it is not."""
        return {} if self.generator is not None else self.given["generator"]["train"]

    @cached_property
    def learners(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that train the generator, and readers: other patients if there are enough."""
        if not self.budget or len(self.train) < _APART:
            return self.train, self.train
        who = np.array(self.data.patient)[self.train]
        known = np.random.default_rng(self.get("seed") + 1).permutation(np.unique(who))
        own = np.isin(who, known[: len(known) // 3])
        return self.train[~own], self.train[own]

    @property
    def variables(self) -> dict[str, Variable]:
        """What is read from images: the parents, then the labels that are none."""
        names = dict.fromkeys((*self.parents, *self.labels))
        return {name: _variable(self.graph, name) for name in names}

    def threshold(self, label: str) -> float:
        """Above which score a decision about a label is positive."""
        given = self.get("threshold")
        return given[label] if isinstance(given, dict) else given

    def words(self, name: str, value: float) -> str:
        """A value of a variable, as people say it."""
        known = self.variables[name].categories
        return known[int(value)] if known else f"{value:.4g}"

    def _check_numbers(self) -> None:
        """Refuse numbers, thresholds and a device that cannot be."""
        for key, least in (("size", 16), ("seed", 0), ("replicates", 2)):
            with self._page.at(key):
                check_count(self.given.get(key, least), "it", least, 100_000)
        shares, given = {"tolerance": self.given.get("tolerance", 0)}, self.get("threshold")
        given = given if isinstance(given, dict) else {"": given}
        shares |= {f"threshold.{label}".rstrip("."): value for label, value in given.items()}
        for key, value in shares.items():
            with self._page.at(key):
                check_fraction(value, "it")
        with self._page.at("device"):
            check_device(self.get("device"))

    def _read_graph(self) -> CausalGraph:
        """The graph; without an image in it, all variables are parents of the image."""
        given = self.given["graph"]
        if not given or not all(isinstance(name, str) for name in given):
            self._page.refuse("graph", f"needs names, text in quotes, not {list(given)}")
        source = "# a graph\n" + yaml.safe_dump(given, sort_keys=False)
        if isinstance(given, str):
            source = self._page.file("graph", given)
        with self._page.at("graph"):
            graph = CausalGraph.from_yaml(source)
            if IMAGE not in graph:
                added = Variable(IMAGE, "continuous", range=(0.0, 1.0))
                graph = CausalGraph([*graph.values(), added], {**graph.edges, IMAGE: [*graph]})
            if not graph.parents(IMAGE):
                raise InputError(f"{IMAGE} has no parents")
        return graph

    def _read_labels(self) -> list[str]:
        """The labels, of which each is binary and has a threshold."""
        given, threshold = self.given["labels"], self.given.get("threshold")
        labels = [given] if isinstance(given, str) else given
        if not labels or not all(isinstance(label, str) for label in labels):
            self._page.refuse("labels", f"is a column or a list of columns, not {given!r}")
        for label in labels:
            if labels.count(label) > 1:
                self._page.refuse("labels", f"{label!r} is there twice")
            if _variable(self.graph, label).kind != "binary":
                self._page.refuse("labels", f"{label!r} is not binary in the graph")
        if isinstance(threshold, dict) and set(threshold) != set(labels):
            self._page.refuse("threshold", f"is for {list(threshold)}, but the labels are {labels}")
        return labels

    def _read_columns(self) -> pd.DataFrame:
        """The table with numbers in the columns of parents and labels, text in all others."""
        frame, header = self._cells.frame.reset_index(drop=True), self._cells.header
        named = [(key, self.given[key]) for key in ("image", "patient") if key in self.given]
        groups = self.get("subgroups")
        others = [("labels", name) for name in self.labels] + [("subgroups", n) for n in groups]
        for key, name in [*named, *others, *((f"graph.{n}", n) for n in self.parents)]:
            if name not in header:
                file = self._cells.path.name
                self._page.refuse(key, f"{file} has no column {name!r}; {nearest(name, header)}")
        for _, name in named:
            frame[name] = self._cells.filled(name)
        for name in dict.fromkeys((*self.parents, *self.labels)):
            frame[name] = self._codes(_variable(self.graph, name))
        return frame

    def _codes(self, variable: Variable) -> np.ndarray:
        """A column as numbers: codes of categories, by their names or as they are, or values."""
        name = variable.name
        text = self._cells.frame[name].str.strip()
        names = {category: float(code) for code, category in enumerate(variable.categories)}
        if variable.kind == "continuous":
            codes = pd.Series(self._cells.numbers(name), self._lines)
            bad = (codes < variable.range[0]) | (codes > variable.range[1])
            what = f"in the graph's range {list(variable.range)}"
        else:
            if not text.isin(names).any():
                names = {str(code): float(code) for code in variable.values}
            codes = text.map(names)
            bad, what = codes.isna(), f"one of {', '.join(variable.categories or names)}"
        if bad.any():
            line = self._lines[int(bad.to_numpy().argmax())]
            problem = f"{text[line]!r} is not {what}" if text[line] else "the cell is empty"
            more = f" ({bad.sum()} such cells; mend them, or leave their rows out)"
            self._blame(line, name, problem + more * int(bad.sum() > 1))
        return codes.to_numpy(np.float64)

    def _blame(self, line: int, column: str, problem: str) -> None:
        """Refuse a cell of the table."""
        raise InputError(f"{self._cells.path}, row {line}, column {column}: {problem}")

    def _split(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows that train and those that are audited, which share no patient."""
        rows, column = self.given["rows"], self.given.get("patient")
        self._page.check(rows, {"train": str, "audit": str, "share": NUMBER}, "rows.")
        if ("train" in rows) == ("share" in rows) or {"share", "audit"} <= rows.keys():
            self._page.refuse("rows", "needs train: COLUMN == VALUE, or share: of the patients")
        who = np.array(self._cells.filled(column) if column else self._lines.astype(str))
        if "share" in rows:
            with self._page.at("rows.share"):
                share = check_fraction(rows["share"], "it")
            known = np.random.default_rng(self.get("seed")).permutation(np.unique(who))
            train = np.isin(who, known[: round(len(known) * share)])
        else:
            train = self._matching("train")
        audited = self._matching("audit") if "audit" in rows else ~train
        both = np.isin(who, who[train]) & audited
        if both.any():
            first = int(both.argmax())
            other = int((train & (who == who[first])).argmax())
            places = (
                f"rows {self._lines[other]} and {self._lines[first]} of {self._cells.path.name}"
            )
            count = f"{len(np.unique(who[both]))} patients are in training and in audited rows"
            self._page.refuse("rows", f"{count}, such as {str(who[first])!r} ({places})")
        name = self._cells.frame[self.given["image"]].str.strip().to_numpy()
        twice = np.isin(name, name[train]) & audited
        if twice.any():
            line = self._lines[int(twice.argmax())]
            self._blame(line, self.given["image"], "the image is in a training row too")
        return np.flatnonzero(train), np.flatnonzero(audited)

    def _matching(self, key: str) -> np.ndarray:
        """The rows in which a column has a value, as COLUMN == VALUE says."""
        given = self.given["rows"][key]
        parts = given.split("==")
        for i in range(1, len(parts)):
            column, value = ("==".join(some).strip() for some in (parts[:i], parts[i:]))
            if column in self._cells.header:
                text = self._cells.frame[column].str.strip()
                if not (text == value).any():
                    found = ", ".join(map(repr, text.unique()[:6]))
                    self._page.refuse(f"rows.{key}", f"no {column!r} is {value!r}, but {found}")
                return (text == value).to_numpy()
        known = nearest(parts[0].strip(), self._cells.header)
        return self._page.refuse(f"rows.{key}", f"{given!r} is not COLUMN == VALUE; {known}")

    def _read_images(self, frame: pd.DataFrame) -> Patients:
        """The rows with their images, all of which are there and of one size."""
        given, root = self.given, self._cells.path.parent
        if "images" in given:
            root = self._page.file("images", given["images"])
        if root.suffix != ".npz":
            self._check_files(root)
        options = {"size": given.get("size"), "graph": self.graph, "patient": given.get("patient")}
        options |= {"parents": self.parents, "labels": self.labels, "root": root}
        options["grey"] = self.get("grey")
        try:
            data = Patients.from_table(frame, image=given["image"], **options)
            channels, *shape = data[[0, len(data) - 1]].shape[1:]
        except InputError as error:
            if error.row is not None:
                self._blame(self._lines[error.row], error.column, error.problem)
            self._page.refuse("images", error)
        except (OSError, ValueError) as error:  # of a damaged archive
            self._page.refuse("images", error)
        if self.get("grey") and channels != 1:
            self._page.refuse("grey", "is for files; store grey images in the archive")
        if len(shape) != 2 or min(shape) < 16:
            self._page.refuse("images", f"need two sides of 16 pixels or more, not {shape}")
        return data

    def _check_files(self, root: Path) -> None:
        """Refuse the first file that is missing, no image, or unlike the others, by its row."""
        needs("PIL")
        from PIL import Image

        shapes, column, size = {}, self.given["image"], self.given.get("size")
        for line, name in self._cells.frame[column].str.strip().items():
            problem = ""
            try:
                with Image.open(root / name) as image:
                    form = image.mode, image.format, image.size if size is None else ()
                if form not in shapes:  # the first of its form is looked at
                    shapes[form] = decode(root / name, size, grey=self.get("grey")).shape
                if shapes[form] != (first := next(iter(shapes.values()))):
                    how = "say size: or grey: to make them alike"
                    problem = f"{shapes[form]} pixels, others {first}; {how}"
            except FileNotFoundError:
                problem = "there is no such file"
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
                problem = f"is no image that can be read ({error})"
            if problem:
                self._blame(line, column, f"{root / name}: {problem}")

    def _check_enough(self) -> None:
        """Refuse rows of which nothing can be learnt, or on which nothing can be tried."""
        for rows, what in ((self.train, "train"), (self.audited, "audit")):
            people = len({self.data.patient[row] for row in rows})
            if len(rows) < _LEAST[what] or people < _PATIENTS:
                least = f"{_LEAST[what]} of {_PATIENTS} patients are needed at least"
                self._page.refuse("rows", f"{len(rows)} rows to {what}, and {least}")
            for name, y in {**self.data.parents, **self.data.labels}.items():
                if y[rows].unique().numel() < 2 and (what == "train" or name in self.labels):
                    key = "labels" if name in self.labels else f"graph.{name}"
                    self._page.refuse(key, f"{name!r} has one value only in the rows to {what}")

    def _read_nuisances(self) -> Iterator[tuple[str, list[float]]]:
        """The values to set, by variable."""
        if not self.given["nuisances"]:
            self._page.refuse("nuisances", "name one variable or more, such as view: all")
        for name, given in self.given["nuisances"].items():
            key = f"nuisances.{name}"
            if name in self.labels:
                self._page.refuse(key, "is a label too: no label is its own nuisance")
            if name not in self.parents:
                known = nearest(name, self.parents)
                self._page.refuse(key, f"is no parent of the image in the graph; {known}")
            variable, own = self.graph[name], self.data.parents[name].double().numpy()
            with self._page.at(key):
                values = _values(given, variable, own[self.audited])
                values = np.float32(values).tolist()  # as generators see them
                if len(set(values)) < max(2, len(values)):
                    raise InputError(f"needs two values or more, each once, not {given!r}")
                for value in values if variable.values else ():
                    if value not in own[self.train]:
                        words = (variable.categories or variable.values)[int(value)]
                        raise InputError(f"no training row has {words!r}")
            yield name, values

    def _check_groups(self) -> None:
        """Refuse columns that make too many subgroups, or, if they are named for that, only one."""
        keys = {name: f"nuisances.{name}" for name in self.nuisances}
        keys |= dict.fromkeys(self.get("subgroups"), "subgroups")
        for name, key in keys.items():
            count = self.data.columns[name].iloc[self.audited].nunique()
            most = _GROUPS if name in self.variables else 20
            bands = name in self.graph and self.graph[name].kind == "continuous"
            if count > most and not bands:
                self._page.refuse(key, f"{name!r} has {count} values, more than {most}")
            if count < 2 and key == "subgroups":
                self._page.refuse(key, f"{name!r} has one value only in the rows to audit")

    def _restrict(self, sources: Sequence[str]) -> None:
        """Mark the patients, and what will be made of them, as those of some sources."""
        with self._page.at("source"):
            marked(sources)
        self.data.restricted = tuple(sorted({*self.data.restricted, *sources}))
        announce(sources)

    def _read_grid(self) -> Grid:
        """The worlds and their probabilities."""
        worlds, q = math.prod(map(len, self.nuisances.values())), self.get("q")
        if worlds > _MOST:
            self._page.refuse("nuisances", f"make {worlds} worlds, more than {_MOST}")
        with self._page.at("q"):
            if isinstance(q, str) and q not in ("uniform", "empirical"):
                raise InputError(f"is uniform, empirical or {worlds} numbers, not {q!r}")
            given = "uniform" if q == "empirical" else q
            grid = Grid.product(self.nuisances, given, graph=self.graph)
            grid = grid.empirical(self.data.take(self.audited)) if q == "empirical" else grid
            for name, values in self.nuisances.items():
                for value in values:
                    if not grid.q[grid.values[name] == value].any():
                        none = f"no world in which {name} is {self.words(name, value)} has a weight"
                        raise InputError(f"{none}; give it one, leave it out, or say uniform")
        return grid

    def _read_predictor(self, name: object, given: object, some: Patients) -> tuple[Adapted, list]:
        """A predictor, tried on some images, and the labels of its outputs."""
        key, page = f"predictors.{name}", self._page
        given = {"load": given} if isinstance(given, str) else given
        page.check(given, _PREDICTOR, f"{key}.")
        page.check(given.get("input", {}), _INPUT, f"{key}.input.")
        if not isinstance(name, str) or ":" in name or "load" not in given:
            page.refuse(key, "needs a name without a colon, and load: what it is loaded from")
        chosen, form = given.get("outputs", self.labels), given.get("input", {})
        named = [chosen] if isinstance(chosen, str) else list(chosen)
        for label in named or [None]:
            if label not in self.labels or named.count(label) > 1:
                page.refuse(f"{key}.outputs", f"{label!r} is none of {self.labels}, or there twice")
        numbers = list(chosen.values()) if isinstance(chosen, dict) else len(named)
        with page.at(f"{key}.outputs"):
            for number in numbers if isinstance(chosen, dict) else ():
                check_count(number, "it", 0)
        with page.at(f"{key}.input"):
            _check_input(form, some[[0]].shape[1])
        with page.at(key):
            scores = given.get("scores", "logits")
            if scores not in SCORES:
                raise InputError(f"scores are {', '.join(SCORES)}, not {scores!r}")
            loaded = self._load(key, given["load"], load_predictor)
            reads = getattr(getattr(loaded, "variable", None), "name", None)
            if reads and named != [reads]:
                raise InputError(f"predicts {reads!r}, not {' and '.join(map(repr, named))}")
            made = Adapted(loaded, numbers, scores=scores, **form).eval()
            self._try_out(made.to(self.get("device")), some, "scores" in given)
        return made, named

    def _try_out(self, predictor: Adapted, some: Patients, told: bool) -> None:
        """Refuse a predictor that fails on some images, or seems to give something else."""
        x, pa, _ = on_device(some, self.get("device"))
        try:
            with torch.inference_mode():
                predictor(x[:2], {name: values[:2] for name, values in pa.items()})
                out = predictor(x, pa)
        except InputError:
            raise
        except Exception as error:  # of TorchScript, the last of many lines says what it is
            last = str(error).strip().split("\n")[-1]
            how = "say what it needs, input: {channels: 3, size: 224}"
            raise InputError(f"fails on images {tuple(x.shape[1:])}: {last}; {how}") from error
        if not out.isfinite().all():
            raise InputError(f"gives {out[~out.isfinite()][0]} for an image")
        if not told and out.min() >= 0 and out.max() <= 1:
            found = f"gives {out.min():.3g} to {out.max():.3g} for {len(x)} images"
            raise InputError(f"{found}; say scores: probabilities, or scores: logits if they are")

    def _load(self, key: str, where: str, load: Callable) -> object:
        """What the plan names, a file or MODULE:NAME; its hash is remembered."""
        folder = self._page.folder
        if Path(where).suffix in _FILES:
            path = folder / where
            if not path.is_file():
                raise InputError(f"there is no file {path}")
            self.digests[key] = _sha256(path)
            self._restrict(sources_in(path.read_bytes()))
            return load(path, self.graph, folder)
        if ":" not in where:
            raise InputError(f"{where!r} is neither MODULE:NAME nor a file *.pt or *.safetensors")
        found = load(where, self.graph, folder)
        self.digests[key] = f"{where} {fingerprint(found)}"
        return found

    def _read_generator(self, two: Patients) -> object | None:
        """The generator, tried on two images; None if it is to be trained."""
        given, page, device = self.given["generator"], self._page, self.get("device")
        if isinstance(given, dict):
            page.check(given, {"train": dict}, "generator.")
            page.check(given.get("train"), {"minutes": NUMBER, "steps": int}, "generator.train.")
            if not given["train"] or not all(value > 0 for value in given["train"].values()):
                page.refuse("generator.train", "needs minutes: or steps:, more than 0")
            with page.at("generator.train"):
                untrained(self.graph, IMAGE, two[[0]], None, 0)
            return None
        with page.at("generator"), torch.inference_mode():
            generator = self._load("generator", given, load_generator)
            check_protocol(generator)
            if isinstance(generator, nn.Module):
                generator.eval().to(device)
            x, pa, index = on_device(two, device)
            with blaming("it", x):
                drawn = counterfactuals(generator, x, pa, {}, index=index)
            found = tuple(drawn.shape) if isinstance(drawn, Tensor) else type(drawn).__name__
            if found != tuple(x.shape) or not drawn.isfinite().all():
                raise InputError(f"draws {found} for images {tuple(x.shape)}, or no numbers")
            worlds = Grid.product({name: values[:2] for name, values in self.nuisances.items()})
            how = {"effect": self.get("effect"), "device": device}
            seen = {"it": lambda x, _: x.flatten(1).mean(dim=1)}
            marginalise(generator, seen, two, worlds, labels={"it": None}, **how)
        return generator


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
        if not all(isinstance(v, NUMBER) and (0 < v < math.inf or key == "mean") for v in values):
            raise InputError(f"{key} is a number, and positive, not {value!r}")
        if key in ("mean", "std") and len(values) not in (1, channels):
            raise InputError(f"{key} has {len(values)} numbers for {channels} channels")
    if channels != seen and seen != 1:
        raise InputError(f"the images have {seen} channels, and only one can become {channels}")
