"""The causal graph of chest radiographs, and the interventions of the paper."""

from cfcore.graph import CausalGraph, Variable
from cfcore.interventions import Grid

CHEST = CausalGraph(
    [
        Variable("sex", "binary", categories=("male", "female")),
        Variable("race", "categorical", categories=("white", "asian", "black")),
        Variable("age", "continuous", range=(20.0, 90.0), units="years"),
        Variable("lung_size", "continuous", range=(0.10, 0.45), units="fraction of the image"),
        Variable("effusion", "binary", categories=("healthy", "effusion")),
        Variable("image", "continuous", range=(0.0, 1.0)),
    ],
    {
        "lung_size": ("sex", "age"),
        "effusion": ("age",),
        "image": ("sex", "race", "age", "lung_size", "effusion"),
    },
)
"""The chest graph: sex, race and age are roots; lung size follows sex and age, effusion
follows age, and the image follows all five."""

VIEWS = CausalGraph(
    [
        CHEST["sex"],
        Variable("age", "continuous", range=(0.0, 100.0), units="years"),
        Variable("view", "binary", categories=("PA", "AP")),
        CHEST["effusion"],
        CHEST["image"],
    ],
    {"effusion": ("age",), "image": ("sex", "age", "view", "effusion")},
)
"""The graph of radiographs with a view and without race: sex, age and view are roots, the effusion
follows age, the image follows all four. That the view is a root says that nobody is laid down for
the disease that is audited, which is an assumption, and a doubtful one."""


def paper_grid() -> Grid:
    """The paper's interventions: both sexes at eight ages from 20 to 90 years, all equally likely.

    Example:
        >>> len(paper_grid())
        16
    """
    return Grid.product({"sex": [0, 1], "age": range(20, 91, 10)}, graph=CHEST)
