"""ChestX-ray14 in the published layout, drawn at random: enough patients for the whole study."""

from pathlib import Path

import numpy as np
from miniature import NIH
from PIL import Image

SIDE, PATIENTS = 40, 90


def visits(seed: int = 0) -> list[dict]:
    """Three visits of each patient; every third patient changes the view, which follows disease."""
    rng, rows = np.random.default_rng(seed), []
    for patient in range(1, PATIENTS + 1):
        sex, age = "FM"[patient % 2], int(rng.integers(8, 90))
        for visit in range(4):
            ill = bool(rng.random() < 0.35)
            lying = rng.random() < (0.7 if ill else 0.4)
            rows.append(
                {
                    "name": f"{patient:08d}_{visit:03d}.png", "patient": patient, "visit": visit,
                    "age": age + visit // 2, "sex": sex, "view": "AP" if lying else "PA",
                    "ill": ill, "mass": bool(rng.random() < 0.2),
                }
            )  # fmt: skip
    return rows


def picture(row: dict, rng: np.random.Generator) -> np.ndarray:
    """A corner for each variable, and noise."""
    half = SIDE // 2
    x = 0.35 + 0.04 * rng.standard_normal((SIDE, SIDE))
    x[:half, :half] += 0.15 * row["ill"]
    x[half:, half:] += 0.2 * (row["view"] == "AP")
    x[half:, :half] += 0.2 * row["age"] / 90
    x[:half, half:] += 0.2 * (row["sex"] == "F")
    return (255 * x.clip(0, 1)).astype(np.uint8)


def write_radiographs(folder: Path) -> Path:
    """Write the folder; some images are in colour with alpha, turned, of 16 bits, or black."""
    rng, lines, rows = np.random.default_rng(1), [NIH], visits()
    (folder / "images").mkdir(parents=True)
    for number, row in enumerate(rows):
        pixels = picture(row, rng)
        path = folder / "images" / row["name"]
        if number == 0:
            Image.fromarray(pixels).convert("RGBA").save(path)
        elif number == 1:
            image = Image.fromarray(np.rot90(pixels).copy())
            exif = image.getexif()
            exif[0x0112] = 6
            image.save(path, exif=exif)
        elif number == 2:
            Image.fromarray(pixels.astype(np.uint16) * 257).save(path)
        else:
            Image.fromarray(pixels // 20 if number == 3 else pixels).save(path)
        findings = "|".join([*["Effusion"] * row["ill"], *["Mass"] * row["mass"]]) or "No Finding"
        age = 0 if number == 4 else row["age"]
        lines.append(
            f"{row['name']},{findings},{row['visit']},{row['patient']},{age},"
            f"{row['sex']},{row['view']},2682,2749,0.143,0.143"
        )
    (folder / "Data_Entry_2017_v2020.csv").write_text("\n".join(lines) + "\n")
    for part, inside in (("train_val", lambda p: p % 3), ("test", lambda p: not p % 3)):
        names = [row["name"] for row in rows if inside(row["patient"])]
        (folder / f"{part}_list.txt").write_text("\n".join(names) + "\n")
    return folder
