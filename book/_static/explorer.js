/* The counterfactual explorer: one patient, another sex, another age. */

"use strict";

window.started = true;

Tool.start(async () => {
  const { person, health, decimals, element, shape, scale, line, text, paintGrey, paintDifference } = Tool;
  const { ages, size, predictors, patients } = window.EXPLORER;
  const $ = (name) => document.getElementById(`explorer-${name}`);
  const sexes = [...document.getElementsByName("explorer-sex")];
  const say = Tool.announcer($("said"));
  const pixels = size * size;
  const state = { patient: 0, sex: 1, age: 0 }; // age is an index into ages

  const stored = await Promise.all(patients.map((one) => Tool.unpack(one.pictures, pixels)));

  /* As observed, then the worlds of the truth, then as learned. */
  const picture = (patient, number) => stored[patient](number);
  const world = () => state.sex * ages.length + state.age;
  const truth = () => picture(state.patient, 1 + world());
  const learned = () => picture(state.patient, 1 + 2 * ages.length + world());

  const own = (one) => Tool.own(one, ages);

  const drawPictures = () => {
    const one = patients[state.patient];
    const who = person(state.sex, ages[state.age]);
    paintGrey($("observed"), picture(state.patient, 0));
    paintGrey($("truth"), truth());
    paintGrey($("learned"), learned());
    paintDifference($("difference"), learned(), truth());
    const gap = learned().reduce((total, value, i) => total + Math.abs(value - truth()[i]), 0) / pixels;
    const labels = {
      observed: `Radiograph as observed: ${person(one.sex, one.age)}, ${health(one.effusion)}`,
      truth: `True counterfactual: the same patient as a ${who}`,
      learned: `Learned counterfactual: the same patient as a ${who}`,
      difference: `Learned minus true counterfactual, ${gap.toFixed(1)} of 255 grey levels apart on average`,
    };
    for (const [name, words] of Object.entries(labels)) $(name).setAttribute("aria-label", words);
  };

  const drawCurves = () => {
    const one = patients[state.patient];
    const [width, height] = [200, 150];
    const x = scale([ages[0], ages.at(-1)], [30, width - 10]);
    const y = scale([0, 1], [height - 24, 24]);
    const panels = predictors.map((name, g) => {
      const chart = shape("svg", { viewBox: `0 0 ${width} ${height}` });
      for (const value of [0, 0.5, 1]) {
        chart.append(line([[x(ages[0]), y(value)], [x(ages.at(-1)), y(value)]], "grid"));
        chart.append(text(25, y(value) + 3.5, String(value), "tick", "end"));
      }
      for (const age of [20, 55, 90]) chart.append(text(x(age), height - 9, String(age), "tick"));
      chart.append(text(30, 14, name, "title", "start"));
      for (const sex of [1 - state.sex, state.sex]) {
        const faint = sex === state.sex ? "" : " faint";
        for (const by of ["learned", "truth"]) {
          const points = ages.map((age, i) => [x(age), y(one[by][g][sex * ages.length + i])]);
          chart.append(line(points, `${sex ? "woman" : "man"} ${by}${faint}`));
        }
      }
      const [ox, oy] = [x(Math.min(Math.max(one.age, ages[0]), ages.at(-1))), y(one.observed[g])];
      chart.append(shape("path", { class: "observed", d: `M${ox - 4} ${oy - 4}l8 8m0-8l-8 8` }));
      for (const by of ["learned", "truth"]) {
        const at = { cx: x(ages[state.age]), cy: y(one[by][g][world()]), r: 4.5 };
        chart.append(shape("circle", { ...at, class: `point ${state.sex ? "woman" : "man"} ${by}` }));
      }
      return element("div", { class: "panel" }, chart);
    });
    $("curves").replaceChildren(...panels);
  };

  const listRisks = () => {
    const one = patients[state.patient];
    const rows = predictors.map((name, g) => {
      const [t, l] = [one.truth[g][world()], one.learned[g][world()]];
      const sign = l < t ? "\u2212" : "+";
      const cells = [decimals(one.observed[g]), decimals(t), decimals(l), sign + decimals(Math.abs(l - t))];
      const head = element("th", { scope: "row" }, name);
      return element("tr", {}, head, ...cells.map((value) => element("td", {}, value)));
    });
    $("risks").replaceChildren(...rows);
    const said = predictors.map((name, g) => {
      const [t, l] = [one.truth[g][world()], one.learned[g][world()]];
      return `${name} ${decimals(t)}, learned ${decimals(l)}`;
    });
    say(`As a ${person(state.sex, ages[state.age])}, true risk by predictor: ${said.join("; ")}.`);
  };

  const draw = () => {
    sexes.forEach((input) => { input.checked = Number(input.value) === state.sex; });
    $("age").value = ages[state.age];
    $("age").setAttribute("aria-valuetext", `${ages[state.age]} years`);
    Tool.write($("age-shown"), `${ages[state.age]} years`);
    drawPictures();
    drawCurves();
    listRisks();
  };

  patients.forEach((one, i) => {
    const input = element("input", { type: "radio", name: "explorer-patient", value: i });
    const canvas = element("canvas", { width: size, height: size, "aria-hidden": "true" });
    const words = element("span", {}, person(one.sex, one.age), element("br"), health(one.effusion));
    paintGrey(canvas, picture(i, 0));
    input.checked = i === 0;
    input.addEventListener("change", () => {
      Object.assign(state, { patient: i }, own(one));
      draw();
    });
    $("patients").append(element("label", {}, input, canvas, words));
  });
  $("ages").append(...ages.map((age) => element("option", { value: age })));
  sexes.forEach((input) => input.addEventListener("change", () => {
    state.sex = Number(input.value);
    draw();
  }));
  $("age").addEventListener("input", () => {
    state.age = ages.indexOf(Number($("age").value));
    draw();
  });
  $("own").addEventListener("click", () => {
    Object.assign(state, own(patients[state.patient]));
    draw();
  });

  /* The suggestions on the page: buttons that choose a patient and a world. */
  const apply = ({ patient, sex, age }) => {
    Object.assign(state, { patient }, own(patients[patient]));
    if (sex !== undefined) state.sex = sex;
    if (age !== undefined) state.age = ages.indexOf(age);
    document.getElementsByName("explorer-patient")[patient].checked = true;
    draw();
  };
  for (const button of document.querySelectorAll("button[data-try]")) {
    button.addEventListener("click", () => apply(JSON.parse(button.dataset.try)));
  }
  apply({ patient: 0 });
});
