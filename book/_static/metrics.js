/* The metrics of cfcore, in the browser.

   Pure functions with the conventions of cfcore.metrics: logits in, double precision throughout,
   p-bar rounded to 12 decimals before decisions, ranks and bins, decisions p > threshold, losses in
   nats and exact from logits. tests/book/test_interactive.py compares them with the package.

   A table is { obs, cf, y }: the observed logits of N patients, for each of them an array of K
   counterfactual logits, and the labels. A question is { q, threshold, alphas, bins }. */

"use strict";

const Metrics = (() => {
  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => sum(values) / values.length;
  const dot = (a, b) => a.reduce((total, value, k) => total + value * b[k], 0);

  const sigmoid = (logit) => 1 / (1 + Math.exp(-logit));
  const crossEntropy = (logit, y) => {
    const l = y === 1 ? logit : -logit;
    return Math.log1p(Math.exp(-Math.abs(l))) - Math.min(0, l);
  };

  /* The loss of the average probability, by a log-sum-exp that no saturated logit upsets. */
  const marginalCrossEntropy = (logits, q, y) => {
    const terms = logits.map((logit, k) => Math.log(q[k]) - crossEntropy(logit, y));
    const largest = Math.max(...terms);
    return -(largest + Math.log(sum(terms.map((term) => Math.exp(term - largest)))));
  };

  const roundHalfEven = (x) => {
    const down = Math.floor(x);
    if (x - down !== 0.5) return Math.round(x);
    return down % 2 === 0 ? down : down + 1;
  };
  const rounded = (p) => roundHalfEven(p * 1e12) / 1e12;

  /* How much of each world lies in the worst tail of mass alpha; the last one is usually split.
     The tail of mass 0 is the single worst world that has any weight. */
  const tailShares = (loss, q, alpha) => {
    const worstFirst = [...loss.keys()].sort((a, b) => loss[b] - loss[a] || a - b);
    const shares = new Array(loss.length).fill(0);
    if (alpha === 0) {
      shares[worstFirst.find((k) => q[k] > 0)] = 1;
      return shares;
    }
    let used = 0;
    for (const k of worstFirst) {
      shares[k] = Math.min(Math.max(alpha - used, 0), q[k]);
      used += q[k];
    }
    return shares;
  };
  const tailLoss = (loss, q, alpha) => dot(tailShares(loss, q, alpha), loss) / (alpha || 1);

  /* Scores are taken relative to the first world, so that a constant has variance zero. */
  const variance = (p, q) => {
    const shift = p.map((value) => value - p[0]);
    const centre = dot(shift, q);
    return dot(shift.map((value) => (value - centre) ** 2), q);
  };

  /* Everything about one patient that the metrics are means of. */
  const patient = ({ obs, cf, y }, i, { q, threshold, alphas }) => {
    const pObs = sigmoid(obs[i]);
    const p = cf[i].map(sigmoid);
    const pBar = dot(p, q);
    const loss = cf[i].map((logit) => crossEntropy(logit, y[i]));
    const decision = pObs > threshold;
    const flips = p.map((value) => value > threshold !== decision);
    return {
      pObs,
      p,
      pBar,
      loss,
      flips,
      lossObs: crossEntropy(obs[i], y[i]),
      lossBar: marginalCrossEntropy(cf[i], q, y[i]),
      expectedLoss: dot(loss, q),
      worstLoss: tailLoss(loss, q, 0),
      tails: alphas.map((alpha) => tailLoss(loss, q, alpha)),
      variance: variance(p, q),
      flipRate: sum(q.filter((_, k) => flips[k])),
      disagrees: decision !== rounded(pBar) > threshold,
    };
  };

  const calibration = (p, y, bins) => {
    const size = new Array(bins).fill(0);
    const excess = new Array(bins).fill(0);
    p.forEach((value, i) => {
      let b = 0;
      while (b < bins - 1 && (b + 1) / bins <= value) b += 1;
      size[b] += 1;
      excess[b] += y[i] - value;
    });
    return {
      expected: sum(excess.map(Math.abs)) / p.length,
      maximum: Math.max(...excess.map((value, b) => Math.abs(value) / Math.max(size[b], 1))),
    };
  };

  /* Ranks 1 ... N; equal scores share the average of their ranks. */
  const averageRanks = (x) => {
    const order = [...x.keys()].sort((a, b) => x[a] - x[b]);
    const ranks = new Array(x.length);
    for (let start = 0, end; start < order.length; start = end) {
      end = start + 1;
      while (end < order.length && x[order[end]] === x[order[start]]) end += 1;
      for (let i = start; i < end; i += 1) ranks[order[i]] = (start + 1 + end) / 2;
    }
    return ranks;
  };

  const centred = (x) => {
    const centre = mean(x);
    return x.map((value) => value - centre);
  };
  const correlation = (x, y) => {
    const [a, b] = [centred(x), centred(y)];
    return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
  };

  /* Kendall's tau_b, pair by pair. */
  const kendall = (x, y) => {
    let net = 0;
    let untiedX = 0;
    let untiedY = 0;
    for (let i = 0; i < x.length; i += 1) {
      for (let j = 0; j < i; j += 1) {
        const a = Math.sign(x[i] - x[j]);
        const b = Math.sign(y[i] - y[j]);
        net += a * b;
        untiedX += a * a;
        untiedY += b * b;
      }
    }
    return net / Math.sqrt(untiedX * untiedY);
  };

  /* Every metric by the name it has in cfcore.evaluate, and the patients they are means of. */
  const evaluate = (table, question) => {
    const { y } = table;
    const { alphas, bins } = question;
    const patients = Array.from(y, (_, i) => patient(table, i, question));
    const over = (read) => mean(patients.map(read));
    const observed = patients.map((one) => one.pObs);
    const marginal = patients.map((one) => rounded(one.pBar));
    const before = calibration(observed, y, bins);
    const after = calibration(marginal, y, bins);
    const ranks = averageRanks(observed);
    const marginalRanks = averageRanks(marginal);

    const metrics = {
      R_orig: over((one) => one.lossObs),
      R_CM: over((one) => one.lossBar),
      R_IE: over((one) => one.expectedLoss),
    };
    alphas.forEach((alpha, a) => {
      metrics[`R_CVaR_${alpha.toFixed(2)}`] = over((one) => one.tails[a]);
    });
    Object.assign(metrics, {
      R_WC: over((one) => one.worstLoss),
      Brier_orig: mean(patients.map((one, i) => (one.pObs - y[i]) ** 2)),
      ECE_orig: before.expected,
      MCE_orig: before.maximum,
      Brier_marg: mean(patients.map((one, i) => (one.pBar - y[i]) ** 2)),
      ECE_marg: after.expected,
      MCE_marg: after.maximum,
      S_var: over((one) => one.variance),
      S_flip: over((one) => one.flipRate),
      D_obs: over((one) => Number(one.disagrees)),
      D_abs: over((one) => Math.abs(one.pObs - one.pBar)),
      S_rank: correlation(ranks, marginalRanks),
      tau_b: kendall(observed, marginal),
      abs_rank_change: mean(ranks.map((rank, i) => Math.abs(rank - marginalRanks[i]))),
    });
    return { metrics, patients };
  };

  return { evaluate, tailShares, sigmoid };
})();

if (typeof module !== "undefined") module.exports = Metrics;
