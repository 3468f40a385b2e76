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
  const ORIGINAL = ["R_orig", "Brier_orig", "ECE_orig", "MCE_orig"]; // which no q changes
  const OPENING = { predictor: "sex bias 0.95", q: "uniform", threshold: 0.5, alpha: 0.2, bins: 10, order: "flips" };
  const tool = document.getElementById("playground");
  const further = [...tool.querySelectorAll("[data-more]")]; // all that a beginner can do without
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
  let all = false; // every metric is shown, or three

  /* What is asked now, of the worlds that have weight, or of all of them; null where none has any. */
  const question = (counts = weights.map((input) => Number(input.value))) => {
    const total = counts.reduce((sum, count) => sum + count, 0);
    if (!total) return null;
    const alpha = Number($("alpha").value);
    return {
      q: counts.map((count) => count / total),
      threshold: Number($("threshold").value),
      alphas: [...PAPER.filter((other) => other !== alpha), alpha], // the last is the slider's
      bins: Number($("bins").value),
      alpha,
    };
  };

  const WEIGHTS = { uniform, empirical: nearest, women: worlds.sex.map((sex) => (sex ? N / K : 0)) };
  const setWeights = (values) => weights.forEach((input, k) => { input.value = values[k] ?? 0; });
  const kind = (q) => kinds.find((input) => input.value === q);

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
    $("hint").hidden = !all && asked !== null;
  };

  const showMetrics = (mine, basic, alpha) => {
    const key = (metric) => (metric === "R_CVaR" ? tailName(alpha) : metric);
    const highest = Math.max(...[mine, basic].flatMap((values) => [values.R_WC ?? 0, values.R_orig]));
    for (const row of tool.querySelectorAll("[data-metric]")) {
      const metric = key(row.dataset.metric);
      const digits = metric === "abs_rank_change" ? 1 : 3;
      [mine, basic].forEach((values, column) => {
        const cell = row.cells[1 + column];
        const value = metric in values ? values[metric] : NaN;
        write(cell, metric in values ? decimals(value, digits) : "\u2013");
        cell.dataset.value = value;
        if (metric.startsWith("R_")) cell.style.setProperty("--share", `${(100 * (value || 0)) / highest}%`);
      });
    }
    for (const tile of tool.querySelectorAll("[data-tile]")) {
      const { tile: metric } = tile.dataset;
      const words = (values) => {
        if (!(metric in values)) return "\u2013";
        return metric === "S_flip" ? percent(values[metric]) : decimals(values[metric], 3);
      };
      write(tile.querySelector("b"), words(mine));
      write(tile.querySelector(".basic"), words(basic));
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
    input.addEventListener("change", () => {
      chosen = i;
      drawPatient(last, question());
      remember();
    });
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
    Patient.drawWorlds($("worlds"), one, asked, worlds, patients.age[chosen], all);
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
      all ? `Expected loss ${losses[0]}, tail loss ${losses[1]}, worst ${losses[2]}.` : "",
    ].join(" "));
  };

  const update = () => {
    const asked = question();
    showControls(asked);
    if (!asked) {
      const rest = [tables[$("predictor").value], tables[0]].map((table) => {
        const { metrics } = Metrics.evaluate(table, question(uniform));
        return Object.fromEntries(ORIGINAL.map((name) => [name, metrics[name]]));
      });
      showMetrics(...rest, Number($("alpha").value));
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
      ...(all ? [`tail risk ${decimals(tail, 3)}`] : []),
      `${percent(S_flip)} of decisions flipped`,
      `score variance ${decimals(S_var, 3)}.`,
    ].join(", "));
    return order;
  };

  /* Three metrics, or all of them and what they depend on. */
  const showAll = (yes) => {
    all = yes;
    for (const node of further) node.hidden = !yes;
    tool.classList.toggle("few", !yes);
    $("more").setAttribute("aria-expanded", yes);
  };

  /* The settings as they are in the address, as far as they differ from those at the opening. */
  const settings = () => {
    const q = kinds.find((input) => input.checked).value;
    const now = { predictor: predictors[$("predictor").value].label, q };
    for (const control of ["threshold", "alpha", "bins", "order"]) now[control] = $(control).value;
    const differ = Object.entries(now).filter(([name, value]) => value !== String(OPENING[name]));
    return {
      ...Object.fromEntries(differ),
      ...(q === "custom" && { weights: weights.map((input) => input.value).join(".") }),
      ...(chosen !== listed[0] && { patient: chosen + 1 }),
      ...(all && { metrics: "all" }),
    };
  };
  const remember = () => Tool.address.write(settings());

  /* Settings of an address or of a suggestion; what it does not say is as at the opening. */
  const apply = (asked) => {
    const { q, weights: counts, ...given } = { ...OPENING, ...Object.fromEntries(asked) };
    const custom = q === "custom" && counts;
    (kind(custom ? q : WEIGHTS[q] ? q : OPENING.q)).checked = true;
    setWeights(custom ? counts.split(".") : WEIGHTS[q] ?? uniform);
    for (const control of ["threshold", "alpha", "bins"]) {
      $(control).value = Number.isFinite(Number(given[control])) ? given[control] : OPENING[control];
    }
    $("order").value = given.order in ORDERS ? given.order : OPENING.order;
    const found = predictors.findIndex((one) => one.label === given.predictor);
    $("predictor").value = found < 0 ? 0 : found;
    if (custom || given.metrics === "all") showAll(true);
    const order = update();
    if (order) {
      const patient = Number(given.patient) - 1;
      chosen = patient in patients.y ? patient : order[0];
      drawPatient(last, question());
      $("patients").scrollTop = 0;
    }
  };
  const changed = () => {
    update();
    remember();
  };

  $("predictor").append(...predictors.map(({ label }, i) => element("option", { value: i }, label)));
  $("count").textContent = `for ${N} patients`;
  $("weights").append(element("span", { class: "corner" }), element("b", {}, "women"), element("b", {}, "men"));
  women.slice(0, K / 2).forEach((k) => {
    const other = worlds.sex.findIndex((sex, j) => !sex && worlds.age[j] === worlds.age[k]);
    const pair = [k, other].map((j) => element("span", { class: "weight" }, weights[j], shown[j]));
    $("weights").append(element("span", { class: "age" }, String(worlds.age[k])), ...pair);
  });

  kinds.forEach((input) => input.addEventListener("change", () => {
    if (input.value in WEIGHTS) setWeights(WEIGHTS[input.value]);
    changed();
  }));
  weights.forEach((input) => input.addEventListener("input", () => {
    kind("custom").checked = true;
    changed();
  }));
  for (const control of ["predictor", "threshold", "alpha", "bins", "order"]) {
    $(control).addEventListener("input", changed);
  }
  $("more").addEventListener("click", () => {
    showAll(!all);
    changed();
  });
  new ResizeObserver(() => drawPatient(last, question())).observe($("worlds"));

  const suggestions = Tool.suggest(tool, (asked) => {
    apply(asked);
    remember();
    const table = tool.querySelector(".metrics");
    const far = table.getBoundingClientRect().top - tool.getBoundingClientRect().top > innerHeight / 2; // on a phone
    if (asked.has("metrics")) Tool.bring(far ? table : tool, table);
    else Tool.bring(tool, $("tiles"));
  });
  $("reset").addEventListener("click", () => {
    showAll(false);
    suggestions.choose(0);
    apply(new URLSearchParams());
    remember();
  });
  Tool.explain(tool);
  const open = () => {
    const asked = Tool.address.read();
    const given = [...Object.keys(OPENING), "weights", "patient", "metrics"].some((name) => asked.has(name));
    if (given) suggestions.choose(-1);
    apply(asked);
    if (given) Tool.bring(tool, $("tiles"), "auto");
  };
  showAll(false);
  addEventListener("hashchange", open);
  open();
});
