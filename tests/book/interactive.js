/* What the tests ask of an interactive page. */

"use strict";

window.shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });

window.probe = {
  said: (tool) => document.getElementById(`${tool}-said`).textContent,

  /* The name of the control that has the focus, which must be seen to have it. */
  focused: () => {
    const active = document.activeElement;
    const outlined = (node) => node && getComputedStyle(node).outlineStyle !== "none";
    const seen = outlined(active) || outlined(active.closest("label"));
    return (seen ? "" : "unseen ") + (active.name || active.id);
  },

  /* The grey levels of a canvas, row by row. */
  grey: (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return Array.from(data).filter((_, i) => i % 4 === 0);
  },

  /* How opaque each pixel of a difference is, negative where it is blue: the sign of the difference. */
  signed: (canvas) => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return Array.from({ length: data.length / 4 }, (_, i) => (data[4 * i] > data[4 * i + 2] ? 1 : -1) * data[4 * i + 3]);
  },

  /* Whether all of a node can be seen below the bar of the page. */
  inView: (node) => {
    const { top, bottom } = node.getBoundingClientRect();
    return top >= 48 && bottom <= innerHeight;
  },

  /* The front page: the score of each classifier, and where its dot is along the scale. */
  scores: () => {
    const values = document.querySelectorAll("#front-scores .value");
    const names = document.querySelectorAll("#front-scores tspan.title");
    return Object.fromEntries(Array.from(values).map((node, g) => [names[g].textContent, Number(node.textContent)]));
  },
  dots: () => {
    const { left, width } = document.getElementById("front-scores").getBoundingClientRect();
    const dots = Array.from(document.querySelectorAll("#front-scores circle"));
    return dots.map((dot) => (dot.getBoundingClientRect().x - left) / width);
  },

  /* The table of the explorer: observed, true and learned probability by predictor. */
  risks: () => {
    const cell = (row, of) => Number(row.querySelector(`[data-of=${of}]`).textContent);
    const cells = (row) => ["observed", "truth", "learned"].map((of) => cell(row, of));
    const rows = Array.from(document.querySelectorAll("#explorer-risks tr"));
    return Object.fromEntries(rows.map((row) => [row.cells[0].textContent, cells(row)]));
  },

  /* Put every control of the playground into a position; the last one tells the page. */
  set: ({ predictor, threshold, alpha, bins, q, weights }) => {
    for (const [name, value] of Object.entries({ predictor, threshold, alpha, bins })) {
      document.getElementById(`playground-${name}`).value = value;
    }
    if (q !== "custom") {
      const radio = document.querySelector(`[name=playground-q][value=${q}]`);
      radio.checked = true;
      radio.dispatchEvent(new Event("change", { bubbles: true }));
      return;
    }
    const sliders = weights.map((_, k) => document.querySelector(`[data-world="${k}"]`));
    sliders.forEach((slider, k) => { slider.value = weights[k]; });
    sliders[0].dispatchEvent(new Event("input", { bubbles: true }));
  },

  /* The metrics of the playground with all their digits: of the predictor, and of the unbiased one. */
  metrics: () => {
    const cells = (row) => Array.from(row.cells).slice(1).map((cell) => cell.dataset.value);
    const rows = Array.from(document.querySelectorAll("#playground [data-metric]"));
    return Object.fromEntries(rows.map((row) => [row.dataset.metric, cells(row)]));
  },
};
