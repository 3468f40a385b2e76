/* The metric playground: move what the metrics depend on, and see whom it concerns. */

"use strict";

window.started = true;

Tool.start(() => {
  const { person, health, decimals, percent, element, write } = Tool;
  const { worlds, nearest, patients, predictors } = window.PLAYGROUND;
  const $ = (name) => document.getElementById(`playground-${name}`);
  const say = Tool.announcer($("said"));
  const [N, K] = [patients.y.length, nearest.length];
  const PAPER = [0.5, 0.25, 0.1]; // the tails of the paper's tables
  const uniform = new Array(K).fill(N / K);
  const tailName = (alpha) => `R_CVaR_${alpha.toFixed(2)}`;
  const women = [...worlds.sex.keys()].sort((a, b) => worlds.sex[b] - worlds.sex[a]); // they come first

  const decode = ({ logits }) => {
    const all = new Float32Array(Tool.bytes(logits).buffer); // (N, 1 + K)
    const rows = Array.from({ length: N }, (_, i) => Array.from(all.subarray(i * (K + 1), (i + 1) * (K + 1))));
    return { obs: rows.map((row) => row[0]), cf: rows.map((row) => row.slice(1)), y: patients.y };
  };
  const tables = predictors.map(decode);

  const kinds = [...document.getElementsByName("playground-q")];
  const most = Math.max(60, ...nearest);
  const weights = worlds.sex.map((sex, k) => {
    const label = `as a ${person(sex, worlds.age[k])}`;
    return element("input", { type: "range", min: 0, max: most, step: 1, "aria-label": label, "data-world": k });
  });
  const shown = weights.map(() => element("span", { class: "count" }));
  let chosen = 0; // the patient

  /* What is asked now; null where no world has any weight. */
  const question = () => {
    const total = weights.reduce((sum, input) => sum + Number(input.value), 0);
    if (!total) return null;
    const alpha = Number($("alpha").value);
    return {
      q: weights.map((input) => Number(input.value) / total),
      threshold: Number($("threshold").value),
      alphas: [...PAPER.filter((other) => other !== alpha), alpha], // the last is the slider's
      bins: Number($("bins").value),
      alpha,
    };
  };

  const setWeights = (values) => weights.forEach((input, k) => { input.value = values[k]; });

  const showControls = (asked) => {
    for (const control of ["threshold", "alpha"]) write($(`${control}-shown`), decimals(Number($(control).value)));
    write($("bins-shown"), $("bins").value);
    weights.forEach((input, k) => {
      write(shown[k], input.value);
      input.setAttribute("aria-valuetext", `${input.value} patients`);
    });
    const sum = weights.reduce((total, input) => total + Number(input.value), 0);
    write($("hint"), asked
      ? `q is each number over the sum of all, ${sum}.`
      : "No world has any weight: there is nothing to average. Give one of them a patient.");
    $("hint").classList.toggle("warning", !asked);
  };

  const showMetrics = (mine, basic, alpha) => {
    const key = (metric) => (metric === "R_CVaR" ? tailName(alpha) : metric);
    const highest = mine && Math.max(mine.R_WC, basic.R_WC, mine.R_orig, basic.R_orig);
    for (const row of document.querySelectorAll("#playground [data-metric]")) {
      const metric = key(row.dataset.metric);
      const digits = metric === "abs_rank_change" ? 1 : 3;
      [mine, basic].forEach((values, column) => {
        const cell = row.cells[1 + column];
        const value = values ? values[metric] : NaN;
        write(cell, values ? decimals(value, digits) : "\u2013");
        cell.dataset.value = value;
        if (metric.startsWith("R_")) cell.style.setProperty("--share", `${values ? (100 * value) / highest : 0}%`);
      });
    }
    for (const tile of document.querySelectorAll("#playground [data-tile]")) {
      const value = mine ? mine[key(tile.dataset.tile)] : NaN;
      const flips = tile.dataset.tile === "S_flip";
      write(tile.firstChild, !mine ? "\u2013" : flips ? percent(value) : decimals(value, 3));
    }
  };

  /* The observed decision, then women and men: above or below the threshold. */
  const strip = (one, { q, threshold }) => {
    const furthest = Math.max(threshold, 1 - threshold);
    const colour = (p) => {
      const strength = 0.35 + (0.65 * Math.abs(p - threshold)) / furthest;
      return `rgb(var(--${p > threshold ? "yes" : "no"}) / ${strength.toFixed(2)})`;
    };
    const cell = (k) => (q[k] ? colour(one.p[k]) : "transparent");
    const observed = new Array(2).fill(colour(one.pObs));
    const sexes = [women.slice(0, K / 2), women.slice(K / 2)].map((some) => some.map(cell));
    const cells = [...observed, "transparent", ...sexes[0], "transparent", ...sexes[1]];
    const width = 100 / cells.length;
    const stops = cells.map((fill, i) => `${fill} ${(i * width).toFixed(2)}% ${((i + 1) * width).toFixed(2)}%`);
    return `linear-gradient(to right, ${stops.join(", ")})`;
  };

  const rows = patients.y.map((y, i) => {
    const input = element("input", { type: "radio", name: "playground-patient", value: i });
    const parts = ["who", "strip", "tail", "flips"].map((part) => element("span", { class: part }));
    parts[0].textContent = `${person(patients.sex[i], patients.age[i])}, ${health(y)}`;
    input.addEventListener("change", () => { chosen = i; drawPatient(last, question()); });
    return { input, parts, label: element("label", {}, input, ...parts) };
  });

  const columns = ["patient", "decisions", "tail", "flips"].map((word) => element("span", {}, word));
  const head = element("div", { class: "head", "aria-hidden": "true" }, ...columns);
  let listed = []; // the patients in the order of the list

  const ORDERS = {
    excess: (one) => one.tails.at(-1) - one.expectedLoss,
    tail: (one) => one.tails.at(-1),
    flips: (one) => one.flipRate,
    variance: (one) => one.variance,
    moved: (one) => Math.abs(one.pObs - one.pBar),
  };

  const listPatients = (people, asked) => {
    people.forEach((one, i) => {
      const { parts, label } = rows[i];
      parts[1].style.background = strip(one, asked);
      write(parts[2], decimals(one.tails.at(-1)));
      write(parts[3], percent(one.flipRate));
      label.classList.toggle("flipping", one.flipRate > 0);
    });
    const measure = ORDERS[$("order").value];
    const order = [...people.keys()].sort((a, b) => measure(people[b]) - measure(people[a]) || a - b);
    if (order.some((i, place) => i !== listed[place])) {
      const held = document.activeElement; // moving a row takes the focus from it
      $("patients").replaceChildren(head, ...order.map((i) => rows[i].label));
      if (held.name === "playground-patient") held.focus({ preventScroll: true });
      listed = order;
    }
    return order;
  };

  let last = null; // the people as they were evaluated last

  const drawPatient = (people, asked) => {
    if (!people || !asked) return;
    const one = people[chosen];
    rows[chosen].input.checked = true;
    Patient.drawWorlds($("worlds"), one, asked, worlds, patients.age[chosen]);
    Patient.drawTail($("tail"), one, asked, worlds);
    const side = one.pObs > asked.threshold ? "above" : "below";
    const flipping = one.flips.filter((flip, k) => flip && asked.q[k]).length;
    const flips = flipping
      ? `The decision flips in ${flipping} of ${K} worlds, with ${percent(one.flipRate)} of the mass.`
      : "No world flips the decision.";
    const losses = [one.expectedLoss, one.tails.at(-1), one.worstLoss].map((loss) => decimals(loss));
    write($("sentence"), [
      `A ${person(patients.sex[chosen], patients.age[chosen])}, ${health(patients.y[chosen])}.`,
      `Observed score ${decimals(one.pObs)}, ${side} the threshold; average over q ${decimals(one.pBar)}.`,
      flips,
      `Expected loss ${losses[0]}, tail loss ${losses[1]}, worst ${losses[2]}.`,
    ].join(" "));
  };

  const update = () => {
    const asked = question();
    showControls(asked);
    if (!asked) {
      showMetrics(null, null, Number($("alpha").value));
      say($("hint").textContent);
      return null;
    }
    const mine = Metrics.evaluate(tables[$("predictor").value], asked);
    const basic = $("predictor").value === "0" ? mine : Metrics.evaluate(tables[0], asked);
    last = mine.patients;
    showMetrics(mine.metrics, basic.metrics, asked.alpha);
    const order = listPatients(last, asked);
    drawPatient(last, asked);
    const { R_IE, S_flip, S_var, [tailName(asked.alpha)]: tail } = mine.metrics;
    say([
      `${predictors[$("predictor").value].label}: expected risk ${decimals(R_IE, 3)}`,
      `tail risk ${decimals(tail, 3)}`,
      `${percent(S_flip)} of decisions flipped`,
      `variance ${decimals(S_var, 3)}.`,
    ].join(", "));
    return order;
  };

  /* The suggestions on the page: buttons that set controls and then behave as if by hand. */
  const apply = (settings) => {
    if (settings.q === "women") {
      kinds[2].checked = true;
      setWeights(worlds.sex.map((sex) => (sex ? 20 : 0)));
    } else if (settings.q) {
      kinds.find((input) => input.value === settings.q).checked = true;
      setWeights(settings.q === "uniform" ? uniform : nearest);
    }
    for (const control of ["threshold", "alpha", "bins", "order"]) {
      if (settings[control] !== undefined) $(control).value = settings[control];
    }
    if (settings.predictor) $("predictor").value = predictors.findIndex((one) => one.label === settings.predictor);
    const order = update();
    if (order) {
      [chosen] = order;
      drawPatient(last, question());
      $("patients").scrollTop = 0;
    }
  };

  $("predictor").append(...predictors.map(({ label }, i) => element("option", { value: i }, label)));
  $("predictor").value = predictors.findIndex((one) => one.label === "sex bias 0.95");
  $("count").textContent = `for ${N} patients`;
  $("weights").append(element("span", { class: "corner" }), element("b", {}, "women"), element("b", {}, "men"));
  women.slice(0, K / 2).forEach((k) => {
    const other = worlds.sex.findIndex((sex, j) => !sex && worlds.age[j] === worlds.age[k]);
    const pair = [k, other].map((j) => element("span", { class: "weight" }, weights[j], shown[j]));
    $("weights").append(element("span", { class: "age" }, String(worlds.age[k])), ...pair);
  });
  setWeights(uniform);

  kinds.forEach((input) => input.addEventListener("change", () => {
    if (input.value !== "custom") setWeights(input.value === "uniform" ? uniform : nearest);
    update();
  }));
  weights.forEach((input) => input.addEventListener("input", () => { kinds[2].checked = true; update(); }));
  for (const control of ["predictor", "threshold", "alpha", "bins", "order"]) {
    $(control).addEventListener("input", update);
  }
  for (const button of document.querySelectorAll("button[data-try]")) {
    button.addEventListener("click", () => apply(JSON.parse(button.dataset.try)));
  }
  apply({});
});
