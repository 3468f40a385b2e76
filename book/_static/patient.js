/* The two pictures of one patient in the playground: flips, and the tail. */

"use strict";

const Patient = (() => {
  const { decimals, line, person, scale, shape, text } = Tool;

  /* The room for data in a chart, in pixels, so that its words are as large on a phone as on a desk. */
  const room = (chart) => {
    const [width, height] = [chart.clientWidth || 420, chart.clientHeight || 210];
    return { left: 34, right: width - 8, top: 28, bottom: height - 38, width, height };
  };

  const name = (worlds, k) => person(worlds.sex[k], worlds.age[k]);

  /* Lines and numbers of the vertical axis, and what both axes are. */
  const axes = ({ left, right, height }, y, ticks, digits, vertical, horizontal) => [
    ...ticks.map((value) => line([[left, y(value)], [right, y(value)]], "grid")),
    ...ticks.map((value) => text(left - 6, y(value) + 4, decimals(value, digits), "tick", "end")),
    text(2, 12, vertical, "tick", "start"),
    text(right, height - 3, horizontal, "tick", "end"),
  ];

  /* A world: a circle for a woman, a square for a man, as large as its weight. */
  const mark = (sex, look, cx, cy, r, words) => {
    const side = 1.76 * r;
    const drawn = sex
      ? shape("circle", { class: look, cx, cy, r })
      : shape("rect", { class: look, x: cx - side / 2, y: cy - side / 2, width: side, height: side });
    drawn.append(shape("title", {}, words));
    return drawn;
  };

  /* Scores by age, on both sides of the threshold. */
  const drawWorlds = (chart, one, { q, threshold, alpha }, worlds, age, tail) => {
    const space = room(chart);
    const { left, right, top, bottom } = space;
    const x = scale([15, 95], [left, right]);
    const y = scale([0, 1], [bottom, top]);
    const inside = Metrics.tailShares(one.loss, q, alpha);
    const largest = Math.max(...q);
    const marks = one.p.map((p, k) => {
      const look = `${p > threshold ? "yes" : "no"}${tail && inside[k] > 0 ? " in-tail" : ""}`;
      const beside = worlds.sex[k] ? -5 : 5;
      const r = 2 + 6 * Math.sqrt(q[k] / largest);
      const words = `as a ${name(worlds, k)}: ${decimals(p)}`;
      return mark(worlds.sex[k], look, x(worlds.age[k]) + beside, y(p), r, words);
    });
    chart.replaceChildren(
      ...axes(space, y, [0, 0.5, 1], 1, "probability of effusion", "age in the world, years"),
      ...[20, 40, 60, 80].map((tick) => text(x(tick), bottom + 18, String(tick), "tick")),
      line([[left, y(threshold)], [right, y(threshold)]], "threshold"),
      line([[left, y(one.pBar)], [right, y(one.pBar)]], "average"),
      ...marks.filter((_, k) => q[k]),
      shape("path", { class: "observed", d: `M${x(age) - 5} ${y(one.pObs) - 5}l10 10m0-10l-10 10` }),
    );
    const flipping = one.flips.filter((flip, k) => flip && q[k]).length;
    const words = `Scores of the patient in each world, ${flipping} of them on the other side of the threshold`;
    chart.setAttribute("aria-label", `${words} than the observed score.`);
  };

  /* Losses, the worst first, each as wide as its weight; the tail is filled. */
  const drawTail = (chart, one, { q, alpha }, worlds) => {
    const { loss } = one;
    const tail = one.tails.at(-1);
    const order = [...q.keys()].filter((k) => q[k] > 0).sort((a, b) => loss[b] - loss[a] || a - b);
    const inside = Metrics.tailShares(loss, q, alpha);
    const top = Math.max(loss[order[0]], 0.1) * 1.05;
    const space = room(chart);
    const x = scale([0, 1], [space.left, space.right]);
    const y = scale([0, top], [space.bottom, space.top]);
    const bars = [];
    let used = 0;
    for (const k of order) {
      const left = x(used);
      const width = x(used + q[k]) - left;
      const bar = (look, wide) =>
        shape("rect", { class: look, x: left, y: y(loss[k]), width: wide, height: y(0) - y(loss[k]) });
      const whole = bar("bar", width);
      whole.append(shape("title", {}, `as a ${name(worlds, k)}: loss ${decimals(loss[k])}`));
      bars.push(whole, bar("in-tail", alpha === 0 ? inside[k] * width : (inside[k] / q[k]) * width));
      const letter = worlds.sex[k] ? "w" : "m";
      if (width > 13) {
        bars.push(text(left + width / 2, space.bottom + 11, letter, "tick small"));
        bars.push(text(left + width / 2, space.bottom + 21, String(worlds.age[k]), "tick small"));
      }
      used += q[k];
    }
    chart.replaceChildren(
      ...axes(space, y, [0, top / 2, top], top < 1 ? 2 : 1, "loss, nats", "mass of worlds under q, the worst first"),
      ...bars,
      line([[x(0), y(tail)], [x(Math.max(alpha, 0.02)), y(tail)]], "tail-mean"),
      line([[x(alpha), space.top - 8], [x(alpha), space.bottom]], "threshold"),
    );
    const worst = `${decimals(loss[order[0]])} as a ${name(worlds, order[0])}`;
    const words = `Losses of the patient in ${order.length} worlds, the worst first: ${worst}.`;
    chart.setAttribute("aria-label", `${words} The mean of the tail is ${decimals(tail)}.`);
  };

  return { drawTail, drawWorlds };
})();
