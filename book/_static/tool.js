/* What the interactive pages share: starting, words, and drawing. */

"use strict";

const Tool = (() => {
  /* Run a tool; if it cannot, show the still picture again. */
  const start = async (make) => {
    try {
      await make();
    } catch (error) {
      document.documentElement.classList.remove("interactive");
      throw error;
    }
  };

  const bytes = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

  /* Square pictures of so many pixels in a row, each kept as its difference from the one before, modulo 256, deflated. */
  const unpack = async (pictures, pixels) => {
    const inflated = new Blob([bytes(pictures)]).stream().pipeThrough(new DecompressionStream("deflate"));
    const grey = new Uint8Array(await new Response(inflated).arrayBuffer());
    for (let i = pixels; i < grey.length; i += 1) grey[i] += grey[i - pixels];
    return (number) => grey.subarray(number * pixels, (number + 1) * pixels);
  };

  /* Fill a square canvas; colour gives red, green, blue and opacity of a pixel. */
  const paint = (canvas, colour) => {
    const image = new ImageData(canvas.width, canvas.height);
    for (let i = 0; i < canvas.width * canvas.height; i += 1) image.data.set(colour(i), 4 * i);
    canvas.getContext("2d").putImageData(image, 0, 0);
  };
  const paintGrey = (canvas, grey) => paint(canvas, (i) => [grey[i], grey[i], grey[i], 255]);

  /* One picture less another: red where it is brighter, blue where it is darker. */
  const paintDifference = (canvas, a, b) =>
    paint(canvas, (i) => {
      const difference = a[i] - b[i];
      const strength = Math.min(255, 4 * Math.abs(difference));
      return difference > 0 ? [214, 72, 40, strength] : [40, 110, 214, strength];
    });

  /* The world nearest to a patient: sex, and index into the ages. */
  const own = (one, ages) => {
    const distance = ages.map((age) => Math.abs(age - one.age));
    return { sex: one.sex, age: distance.indexOf(Math.min(...distance)) };
  };

  const person = (sex, age) => `${sex ? "woman" : "man"} of ${Math.round(age)}`;
  const health = (effusion) => (effusion ? "effusion" : "healthy");
  const decimals = (value, digits = 2) =>
    Number.isFinite(value) ? value.toFixed(digits) : "undefined";
  const percent = (value) => `${(100 * value).toFixed(0)} %`;

  const element = (tag, attributes = {}, ...children) => {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  };

  /* Change words in place: every new node wakes the observers that the theme has on the page. */
  const write = (node, words) => {
    if (!node.firstChild) node.append("");
    if (node.firstChild.data !== words) node.firstChild.data = words;
  };

  const shape = (tag, attributes = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) {
      node.setAttribute(name, typeof value === "number" ? value.toFixed(2) : value);
    }
    node.append(...children);
    return node;
  };

  const scale = (from, to) => (value) =>
    to[0] + ((value - from[0]) / (from[1] - from[0])) * (to[1] - to[0]);

  const line = (points, name) => {
    const places = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`);
    return shape("polyline", { class: name, points: places.join(" ") });
  };

  const text = (x, y, words, name = "", anchor = "middle") =>
    shape("text", { x, y, class: name, "text-anchor": anchor }, words);

  /* Say something to a screen reader once the hand rests. */
  const announcer = (node) => {
    let waiting;
    return (words) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => {
        node.textContent = words;
      }, 300);
    };
  };

  /* What a page shows, in its address: read when it opens, written once the hand rests.
     A browser that keeps the query of a file from scripts gets it behind a hash. */
  let writing;
  const address = {
    read: () => new URLSearchParams(location.hash.includes("=") ? location.hash.slice(1) : location.search),
    write: (settings) => {
      clearTimeout(writing);
      writing = setTimeout(() => {
        const words = new URLSearchParams(settings).toString();
        try {
          history.replaceState(null, "", words ? `?${words}` : location.pathname);
        } catch {
          history.replaceState(null, "", `#${words}`);
        }
      }, 300);
    },
  };

  /* Scroll to a tool, and frame for a moment what has changed in it. */
  const bring = (tool, changed, behavior = "smooth") => {
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    tool.scrollIntoView({ block: "start", behavior: calm ? "auto" : behavior });
    changed.classList.add("changed");
    setTimeout(() => changed.classList.remove("changed"), 1500);
  };

  /* The suggestions of a page: each button names the settings that it chooses, as an address does. */
  const suggest = (root, apply) => {
    const buttons = [...root.querySelectorAll("button[data-try]")];
    const choose = (one) => buttons.forEach((other) => other.closest("li").classList.toggle("chosen", other === one));
    for (const button of buttons) {
      button.addEventListener("click", () => {
        choose(button);
        apply(new URLSearchParams(button.dataset.try));
      });
    }
    return { first: new URLSearchParams(buttons[0].dataset.try), choose: (number) => choose(buttons[number]) };
  };

  /* Formulas at names: seen while the pointer or the focus is there, held by a click, let go by Escape. */
  const explain = (root) => {
    const names = [...root.querySelectorAll(".named > button")];
    const hold = (one) => names.forEach((name) => {
      const held = name === one;
      name.parentNode.classList.toggle("held", held);
      name.setAttribute("aria-expanded", held);
    });
    names.forEach((name, i) => {
      const note = name.nextElementSibling;
      note.id ||= `${root.id}-formula-${i}`;
      name.setAttribute("aria-describedby", note.id);
      name.addEventListener("click", () => hold(name.getAttribute("aria-expanded") === "true" ? null : name));
      for (const come of ["pointerenter", "focus"]) {
        name.addEventListener(come, () => name.parentNode.classList.remove("dismissed"));
      }
    });
    document.addEventListener("click", (event) => { if (!event.target.closest?.(".named")) hold(null); });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      hold(null);
      names.forEach((name) => name.parentNode.classList.add("dismissed"));
    });
    hold(null);
  };

  return {
    start, bytes, unpack, paintGrey, paintDifference, own, person, health, decimals, percent,
    element, write, shape, scale, line, text, announcer, address, bring, suggest, explain,
  };
})();
