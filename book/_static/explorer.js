/* The counterfactual explorer: one patient, another sex, another age. */

"use strict";

window.started = true;

Tool.start(async () => {
  const { person, health, decimals, element, shape, scale, line, text, write, paintGrey, paintDifference } = Tool;
  const { ages, size, predictors, patients } = window.EXPLORER;
  const THRESHOLD = 0.5;
  const FIRST = ["unbiased", "sex bias 0.95"]; // the others come when asked for
  const $ = (name) => document.getElementById(`explorer-${name}`);
  const tool = document.getElementById("explorer");
  const sexes = [...document.getElementsByName("explorer-sex")];
  const say = Tool.announcer($("said"));
  const pixels = size * size;
  const state = { patient: 0, sex: 1, age: 0, more: false, learned: false }; // age is an index into ages

  const stored = await Promise.all(patients.map((one) => Tool.unpack(one.pictures, pixels)));

  /* As observed, then the worlds of the truth, then as learned. */
  const picture = (patient, number) => stored[patient](number);
  const world = (sex = state.sex, age = state.age) => sex * ages.length + age;
  const one = () => patients[state.patient];
  const own = () => Tool.own(one(), ages);
  const now = () => person(state.sex, ages[state.age]);
  const mean = (values) => values.reduce((total, value) => total + value, 0) / values.length;
  const shown = () => [...predictors.keys()].filter((g) => state.more || FIRST.includes(predictors[g]));

  const drawPictures = () => {
    const [observed, truth, drawn] = [0, 1 + world(), 1 + 2 * ages.length + world()].map((k) => picture(state.patient, k));
    const gap = (a, b) => `${mean(Array.from(a, (value, i) => Math.abs(value - b[i]))).toFixed(1)} of 255 grey levels on average`;
    const who = `${person(one().sex, one().age)}, ${health(one().effusion)}`;
    paintGrey($("observed"), observed);
    paintGrey($("truth"), truth);
    paintGrey($("drawn"), drawn);
    paintDifference($("change"), truth, observed);
    paintDifference($("error"), drawn, truth);
    write($("patient-shown"), who);
    write($("world-shown"), now());
    const labels = {
      observed: `Radiograph as observed: ${who}`,
      truth: `True counterfactual: the same patient as a ${now()}`,
      change: `True counterfactual minus observed radiograph: ${gap(truth, observed)}`,
      drawn: `Learned counterfactual: the same patient as a ${now()}`,
      error: `Learned minus true counterfactual: ${gap(drawn, truth)}`,
    };
    for (const [name, words] of Object.entries(labels)) $(name).setAttribute("aria-label", words);
  };

  /* A panel for each predictor: its scores by age. It is a slider too: arrows to the sides change the age, up and down the sex. */
  const panels = predictors.map((name, g) => {
    const readout = element("span", { class: "readout" });
    const chart = shape("svg", { "aria-hidden": "true" });
    const roles = { role: "slider", tabindex: 0, "aria-valuemin": ages[0], "aria-valuemax": ages.at(-1) };
    const label = `Age in the world, with the score of ${name}; up and down change the sex`;
    const node = element("div", { class: "panel", "aria-label": label, ...roles }, element("b", {}, name), readout, chart);
    return { g, node, readout, chart };
  });

  const scales = (chart) => {
    const [width, height] = [chart.clientWidth || 280, chart.clientHeight || 140];
    return {
      x: scale([ages[0], ages.at(-1)], [24, width - 8]),
      y: scale([0, 1], [height - 20, 8]),
      nearest: (at) => Math.round(Math.min(Math.max((at - 24) / (width - 32), 0), 1) * (ages.length - 1)),
    };
  };

  const values = (g, age) => {
    const score = (sex) => `${sex ? "woman" : "man"} ${decimals(one().truth[g][world(sex, age)])}`;
    return `${ages[age]} years: ${score(1)}, ${score(0)}`;
  };
  const current = (g) => {
    const [t, l] = [one().truth[g][world()], one().learned[g][world()]];
    return `${now()}: ${decimals(t)}${state.learned ? `, learned ${decimals(l)}` : ""}`;
  };

  /* Where the words on the average are furthest from every curve: at either end, above or below. */
  const roomiest = ({ x, y }, g) => {
    const average = mean(one().truth[g]);
    const first = [0, 1, 2];
    const places = [["start", first], ["end", first.map((i) => ages.length - 1 - i)]].flatMap(([anchor, half]) =>
      [-5, 13].map((dy) => {
        const middle = y(average) + dy - 4;
        const makers = state.learned ? ["truth", "learned"] : ["truth"];
        const curves = makers.flatMap((by) => half.flatMap((i) => [0, 1].map((sex) => y(one()[by][g][world(sex, i)]))));
        const others = state.learned ? [...curves, y(mean(one().learned[g]))] : curves;
        return { anchor, at: y(average) + dy, free: Math.min(...others.map((other) => Math.abs(other - middle))) };
      }));
    const fits = places.filter(({ at }) => at > y(1) + 6 && at < y(0));
    const best = fits.reduce((a, b) => (b.free > a.free ? b : a));
    const edge = best.anchor === "start" ? x(ages[0]) + 3 : x(ages.at(-1));
    return text(edge, best.at, `mean ${decimals(average)}`, "halo", best.anchor);
  };

  /* Hover is the age that the pointer is at, or nothing. */
  const drawPanel = ({ g, node, readout, chart }, hover) => {
    const measures = scales(chart);
    const { x, y } = measures;
    const makers = state.learned ? ["learned", "truth"] : ["truth"];
    const level = (p, look) => line([[x(ages[0]), y(p)], [x(ages.at(-1)), y(p)]], look);
    const parts = [];
    for (const p of [0, 0.5, 1]) parts.push(level(p, "grid"), text(19, y(p) + 4, String(p), "tick", "end"));
    for (const age of [20, 40, 60, 80]) parts.push(text(x(age), y(0) + 16, String(age), "tick"));
    if (hover !== undefined) parts.push(line([[x(ages[hover]), y(0)], [x(ages[hover]), y(1)]], "grid guide"));
    for (const by of makers) parts.push(level(mean(one()[by][g]), `average ${by}`));
    for (const sex of [1 - state.sex, state.sex]) {
      for (const by of makers) {
        const points = ages.map((age, i) => [x(age), y(one()[by][g][world(sex, i)])]);
        parts.push(line(points, `${sex ? "woman" : "man"} ${by}${sex === state.sex ? "" : " faint"}`));
      }
    }
    parts.push(roomiest(measures, g));
    const [ox, oy] = [x(Math.min(Math.max(one().age, ages[0]), ages.at(-1))), y(one().observed[g])];
    parts.push(shape("path", { class: "observed", d: `M${ox - 4} ${oy - 4}l8 8m0-8l-8 8` }));
    const point = (sex, age, by, look) =>
      shape("circle", { cx: x(ages[age]), cy: y(one()[by][g][world(sex, age)]), r: 5, class: `point ${sex ? "woman" : "man"} ${look}` });
    if (hover !== undefined) parts.push(...[0, 1].map((sex) => point(sex, hover, "truth", "learned")));
    for (const by of makers) parts.push(point(state.sex, state.age, by, by));
    chart.replaceChildren(...parts);
    write(readout, hover === undefined ? current(g) : values(g, hover));
    node.setAttribute("aria-valuenow", ages[state.age]);
    node.setAttribute("aria-valuetext", current(g));
  };
  const drawPanels = () => panels.filter(({ g }) => shown().includes(g)).forEach((panel) => drawPanel(panel));

  /* One row of the table for each predictor; only those shown can be seen. */
  const rows = predictors.map((name) => {
    const columns = { observed: "", truth: "", mean: "", lowest: "range", highest: "range", learned: "with-learned", error: "with-learned" };
    const cells = Object.entries(columns).map(([of, look]) => element("td", { "data-of": of, class: look }));
    return element("tr", {}, element("th", { scope: "row" }, name), ...cells);
  });
  const listRisks = () => {
    rows.forEach((row, g) => {
      const [all, t, l] = [one().truth[g], one().truth[g][world()], one().learned[g][world()]];
      const error = (l < t ? "\u2212" : "+") + decimals(Math.abs(l - t));
      const parts = [one().observed[g], t, mean(all), Math.min(...all), Math.max(...all), l].map((p) => decimals(p));
      [...parts, error].forEach((words, i) => write(row.cells[1 + i], words));
    });
    const side = (p) => p > THRESHOLD;
    const turned = shown().filter((g) => side(one().truth[g][world()]) !== side(one().observed[g]));
    const names = turned.map((g) => `“${predictors[g]}”`);
    const who = names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names[0] ?? "no predictor shown here";
    const home = state.sex === own().sex && state.age === own().age;
    write($("sentence"), home
      ? `This is the world nearest to the patient, a ${person(one().sex, one().age)}: hardly anything changes.`
      : `Had this ${person(one().sex, one().age)} been a ${now()}, ${who} would have decided otherwise at a threshold of ${THRESHOLD}.`);
    const said = shown().map((g) => {
      const learned = state.learned ? `, learned ${decimals(one().learned[g][world()])}` : "";
      return `${predictors[g]} ${decimals(one().truth[g][world()])}${learned}`;
    });
    say(`As a ${now()}, probability of effusion by predictor: ${said.join("; ")}. ${$("sentence").textContent}`);
  };

  const draw = () => {
    document.getElementsByName("explorer-patient")[state.patient].checked = true;
    sexes.forEach((input) => { input.checked = Number(input.value) === state.sex; });
    $("age").value = ages[state.age];
    $("age").setAttribute("aria-valuetext", `${ages[state.age]} years`);
    write($("age-shown"), `${ages[state.age]} years`);
    $("more").checked = state.more;
    $("learned").checked = state.learned;
    tool.classList.toggle("all-predictors", state.more);
    tool.classList.toggle("learning", state.learned);
    predictors.forEach((_, g) => {
      panels[g].node.hidden = !shown().includes(g);
      rows[g].hidden = !shown().includes(g);
    });
    drawPictures();
    drawPanels();
    listRisks();
  };

  /* The settings as they are in the address; what it does not say is as the patient is. */
  const settings = () => ({
    patient: state.patient + 1,
    sex: state.sex ? "woman" : "man",
    age: ages[state.age],
    ...(state.more && { predictors: "all" }),
    ...(state.learned && { learned: "yes" }),
  });
  const apply = (asked) => {
    const number = Number(asked.get("patient")) - 1;
    state.patient = number in patients ? number : 0;
    const age = ages.indexOf(Number(asked.get("age")));
    Object.assign(state, {
      sex: { woman: 1, man: 0 }[asked.get("sex")] ?? own().sex,
      age: age < 0 ? own().age : age,
      more: asked.get("predictors") === "all",
      learned: asked.get("learned") === "yes",
    });
    draw();
  };
  const change = (parts) => {
    Object.assign(state, parts);
    draw();
    Tool.address.write(settings());
  };

  patients.forEach((each, i) => {
    const input = element("input", { type: "radio", name: "explorer-patient", value: i });
    const canvas = element("canvas", { width: size, height: size, "aria-hidden": "true" });
    const words = element("span", {}, person(each.sex, each.age), element("br"), health(each.effusion));
    paintGrey(canvas, picture(i, 0));
    const mine = Tool.own(each, ages);
    input.addEventListener("change", () => change({ patient: i, ...mine, sex: 1 - mine.sex })); // so that something is seen
    $("patients").append(element("label", {}, input, canvas, words));
  });
  $("curves").append(...panels.map(({ node }) => node));
  $("risks").append(...rows);
  $("ages").append(...ages.map((age) => element("option", { value: age })));
  sexes.forEach((input) => input.addEventListener("change", () => change({ sex: Number(input.value) })));
  $("age").addEventListener("input", () => change({ age: ages.indexOf(Number($("age").value)) }));
  $("own").addEventListener("click", () => change(own()));
  $("more").addEventListener("change", () => change({ more: $("more").checked }));
  $("learned").addEventListener("change", () => change({ learned: $("learned").checked }));

  for (const panel of panels) {
    const { g, node, chart } = panel;
    const at = (event) => {
      const box = chart.getBoundingClientRect();
      const { y, nearest } = scales(chart);
      const age = nearest(event.clientX - box.left);
      const away = (sex) => Math.abs(y(one().truth[g][world(sex, age)]) - (event.clientY - box.top));
      return { age, sex: away(1) === away(0) ? state.sex : Number(away(1) < away(0)) };
    };
    chart.addEventListener("click", (event) => change(at(event)));
    chart.addEventListener("pointermove", (event) => {
      if (event.buttons) change({ age: at(event).age });
      else if (event.pointerType === "mouse") drawPanel(panel, at(event).age);
    });
    chart.addEventListener("pointerleave", () => drawPanel(panel));
    const last = ages.length - 1;
    node.addEventListener("keydown", (event) => {
      const age = { ArrowLeft: state.age - 1, ArrowRight: state.age + 1, Home: 0, End: last }[event.key];
      if (age === undefined && !["ArrowUp", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      change(age === undefined ? { sex: 1 - state.sex } : { age: Math.min(Math.max(age, 0), last) });
    });
  }
  new ResizeObserver(drawPanels).observe($("curves"));

  const suggestions = Tool.suggest(tool, (asked) => {
    apply(asked);
    Tool.address.write(settings());
    Tool.bring(tool, $("view"));
  });
  Tool.explain(tool);
  const open = () => {
    const asked = Tool.address.read();
    const given = ["patient", "sex", "age", "predictors", "learned"].some((name) => asked.has(name));
    if (given) suggestions.choose(-1);
    apply(given ? asked : suggestions.first);
    if (given) Tool.bring(tool, $("view"), "auto");
  };
  addEventListener("hashchange", open);
  open();
});
