"""How fast the learned generator abducts and draws, beside the phantom on the same machine."""

import time

import torch
from stopwatch import medians

from cfbook.study.cohorts import parts, phantom_cohort
from cfbook.study.presets import preset
from cfbook.study.recipes import GeneratorRecipe

TARGET = 1500  # counterfactuals a second on two cores
PATIENTS, WORLDS = 32, 16


def main() -> None:
    """Prints images a second, and the share of an abduction."""
    torch.set_num_threads(1)
    sizes = preset("book")
    model = GeneratorRecipe(sizes).untrained().eval().to(memory_format=torch.channels_last)
    data = parts("C", sizes)["test"].take(range(PATIENTS))
    x, pa, oracle = data[:], data.parents, phantom_cohort("C", sizes).oracle
    index = torch.tensor(data.table.image.to_numpy())
    with torch.inference_mode():
        noise, hidden = model.abduct(x, pa), oracle.abduct(x, pa, index=index)
        work = {
            "learned": lambda: [model.predict(noise, pa) for _ in range(WORLDS)],
            "abduction": lambda: model.abduct(x, pa),
            "phantom": lambda: [oracle.predict(hidden, pa) for _ in range(WORLDS)],
        }
        seconds = medians(5, clock=time.process_time, **work)
    rate = PATIENTS * WORLDS / seconds["learned"]
    print(
        f"learned counterfactuals  {rate:6.0f} images/s on one thread, target {TARGET} on two cores"
    )
    print(f"learned / phantom        {seconds['learned'] / seconds['phantom']:6.2f}")
    print(f"abduction / 16 worlds    {seconds['abduction'] / seconds['learned']:6.2f}")


if __name__ == "__main__":
    main()
