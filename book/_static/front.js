/* The first screen: one patient in another world, and what two classifiers say there. */

"use strict";

window.started = true;

Tool.start(async () => {
  const { decimals, person, shape, text, write } = Tool;
  const { ages, size, threshold, predictors, patient } = window.FRONT;
  const $ = (name) => document.getElementById(`front-${name}`);
  const sexes = [...document.getElementsByName("front-sex")];
  const say = Tool.announcer($("said"));
  const picture = await Tool.unpack(patient.pictures, size * size);
  const own = Tool.own(patient, ages);
  const state = { sex: 1 - own.sex, age: own.age }; // age is an index into ages

  const world = () => state.sex * ages.length + state.age;
  const at = (p) => `${2 + 96 * p}%`; // so that a mark at either end is whole
  const rule = (p, y, height, look) => shape("line", { class: look, x1: at(p), x2: at(p), y1: y - height, y2: y + height });
  const [first, step] = [38, 60];

  /* A row for each classifier: the scale, all worlds, their average, the observed score, and this world. */
  const rows = predictors.map(({ name, note, observed, worlds }, g) => {
    const y = first + g * step;
    const average = worlds.reduce((total, p) => total + p, 0) / worlds.length;
    const label = text("2%", y - 18, "", "", "start");
    label.append(shape("tspan", { class: "title" }, name), shape("tspan", { class: "tick note", dx: "0.6em" }, note));
    const value = text("98%", y - 18, "", "title value", "end");
    const dot = shape("circle", { class: "point truth", cy: y, r: 8 });
    $("scores").append(
      shape("line", { class: "grid", x1: at(0), x2: at(1), y1: y, y2: y }),
      rule(threshold, y, 11, "threshold"),
      ...worlds.map((p) => rule(p, y, 4, "other")),
      rule(average, y, 11, "average"),
      text(at(observed), y + 6, "×", "cross"),
      dot, label, value,
    );
    return { name, observed, worlds, average, dot, value };
  });
  const bottom = first + predictors.length * step - 30;
  for (const [p, words] of [[0, "0"], [threshold, `threshold ${threshold}`], [1, "1"]]) {
    $("scores").append(text(at(p), bottom, words, "tick"));
  }

  /* Who would have decided otherwise in this world? */
  const verdict = (now) => {
    const turned = rows.filter(({ observed, worlds }) => worlds[world()] > threshold !== observed > threshold);
    if (state.sex === own.sex && state.age === own.age) return "This is the world nearest to the patient’s own.";
    const who = ["neither classifier", `only the classifier “${turned[0]?.name}”`, "both classifiers"][turned.length];
    return `Had this ${person(patient.sex, patient.age)} been a ${now}, ${who} would have decided otherwise.`;
  };

  const draw = () => {
    const now = person(state.sex, ages[state.age]);
    sexes.forEach((input) => { input.checked = Number(input.value) === state.sex; });
    $("age").value = ages[state.age];
    $("age").setAttribute("aria-valuetext", `${ages[state.age]} years`);
    write($("age-shown"), `${ages[state.age]} years`);
    write($("who"), now);
    Tool.paintGrey($("truth"), picture(1 + world()));
    Tool.paintDifference($("change"), picture(1 + world()), picture(0));
    $("truth").setAttribute("aria-label", `True counterfactual: the same patient as a ${now}`);
    $("change").setAttribute("aria-label", `What differs between the patient as observed and as a ${now}`);
    for (const { worlds, dot, value } of rows) {
      const p = worlds[world()];
      dot.style.cx = at(p);
      dot.setAttribute("class", `point truth ${state.sex ? "woman" : "man"}`);
      write(value, decimals(p));
    }
    write($("verdict"), verdict(now));
    const scores = rows.map(({ name, observed, worlds, average }) =>
      `${name} ${decimals(worlds[world()])}, observed ${decimals(observed)}, average over worlds ${decimals(average)}`);
    $("scores").setAttribute("aria-label", `Probability of effusion as a ${now}: ${scores.join("; ")}.`);
    say(`As a ${now}: ${scores.join("; ")}. ${verdict(now)}`);
  };

  const observed = `${person(patient.sex, patient.age)}, ${Tool.health(patient.effusion)}`;
  Tool.paintGrey($("observed"), picture(0));
  $("observed").setAttribute("aria-label", `Radiograph as observed: ${observed}`);
  write($("patient"), observed);
  sexes.forEach((input) => input.addEventListener("change", () => {
    state.sex = Number(input.value);
    draw();
  }));
  $("age").addEventListener("input", () => {
    state.age = ages.indexOf(Number($("age").value));
    draw();
  });
  draw();
});
