// What every page of the book can do: show or hide all code, enlarge a figure, fit wide formulae,
// open a fold that a link leads to, print. No page needs any of it to be read.
"use strict";

(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (tag, properties, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  // A browser may refuse storage; then a choice holds for this page only.
  const stored = {
    get(key) {
      try { return localStorage.getItem(key); } catch { return null; }
    },
    set(key, value) {
      try { localStorage.setItem(key, value); } catch { /* refused */ }
    },
    remove(key) {
      try { localStorage.removeItem(key); } catch { /* refused */ }
    },
  };

  // One switch for all folded code, kept for the next page.
  function addSwitch() {
    const folds = all("div.cell details.hide");
    const bar = document.querySelector(".article-header-buttons");
    if (!folds.length || !bar) return;
    const button = make("button", { type: "button", className: "code-switch" });
    const set = (shown) => {
      folds.forEach((fold) => { fold.open = shown; });
      button.textContent = shown ? "Hide all code" : "Show all code";
      button.setAttribute("aria-pressed", shown);
    };
    button.addEventListener("click", () => {
      const shown = button.getAttribute("aria-pressed") !== "true";
      const here = button.getBoundingClientRect().top;
      set(shown);
      scrollBy(0, button.getBoundingClientRect().top - here);
      stored.set("book-code", shown ? "shown" : "folded");
    });
    set(stored.get("book-code") === "shown");
    bar.prepend(button);
  }

  // A link to a folded table opens it.
  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const fold = target?.closest("details");
    if (!fold || fold.open) return;
    fold.open = true;
    target.scrollIntoView();
  }

  // A figure opens, on a touch or with Enter, in a window where it is large enough to be read.
  function enlargeFigures() {
    const figures = all(".bd-article img").filter((image) => !image.closest("a, button, .tool, .still"));
    if (!figures.length || !window.HTMLDialogElement) return;
    const close = make("button", { type: "button", className: "close", textContent: "Close" });
    const sheet = make("div", { className: "sheet", tabIndex: 0 });
    const dialog = make("dialog", { className: "enlarged" }, close, sheet);
    let opener = null;
    const open = (image) => {
      opener = image;
      const copy = make("img", { src: image.currentSrc || image.src, alt: image.alt });
      sheet.replaceChildren(copy);
      dialog.setAttribute("aria-label", `Figure, enlarged: ${image.alt}`);
      dialog.showModal();
      sheet.scrollTo(0, 0);
    };
    close.addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target === sheet) dialog.close();
    });
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation(); // the search would take it
      dialog.close();
    });
    dialog.addEventListener("close", () => opener?.focus({ preventScroll: true }));
    document.body.append(dialog);
    for (const image of figures) {
      image.classList.add("enlarges");
      image.tabIndex = 0;
      image.setAttribute("role", "button");
      image.setAttribute("aria-label", `Enlarge the figure: ${image.alt}`);
      image.addEventListener("click", () => open(image));
      image.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        open(image);
      });
    }
  }

  // Formulae that are a little too wide become smaller; what still does not fit can be scrolled,
  // with keys too, and is pale where it goes on.
  const SMALLEST = 0.8;
  function fitFormulae() {
    const boxes = all('.bd-article mjx-container[display="true"]');
    for (const box of boxes) {
      box.dataset.size ??= parseFloat(box.style.fontSize) || 100;
      box.style.fontSize = `${box.dataset.size}%`;
    }
    const ratios = boxes.map((box) => box.clientWidth / box.scrollWidth);
    boxes.forEach((box, k) => {
      if (ratios[k] < 1) box.style.fontSize = `${box.dataset.size * Math.max(SMALLEST, 0.99 * ratios[k])}%`;
    });
  }
  function markEnds(box) {
    const rest = box.scrollWidth - box.clientWidth;
    box.classList.toggle("more-before", rest > 1 && box.scrollLeft > 1);
    box.classList.toggle("more-after", rest > 1 && box.scrollLeft < rest - 1);
    return rest > 1;
  }
  const SCROLLERS =
    '.bd-article :is(mjx-container[display="true"], pre, table.table, table.docutils, .show > div)';
  function fit() {
    fitFormulae();
    for (const box of all(SCROLLERS)) {
      const scrolls = markEnds(box);
      box.classList.toggle("scrolls", scrolls);
      if (scrolls) box.tabIndex = 0;
      else box.removeAttribute("tabindex");
      box.onscroll = () => markEnds(box);
    }
  }

  // On paper folded tables are open, and the page says where it is from.
  let opened = [];
  function beforePrint() {
    opened = all("details.show:not([open])");
    opened.forEach((fold) => { fold.open = true; });
    const address = location.protocol === "file:" ? "" : `, ${location.origin}${location.pathname}`;
    all(".print-head .address").forEach((node) => { node.textContent = address; });
  }
  function afterPrint() {
    opened.forEach((fold) => { fold.open = false; });
  }

  // Found words are marked on the page that a result leads to, not on any page opened next.
  function forgetSearch() {
    const results = document.getElementById("search-results");
    if (!results) return;
    let chosen = false;
    results.addEventListener("click", (event) => { chosen ||= !!event.target.closest("a"); });
    addEventListener("pagehide", () => {
      if (!chosen) stored.remove("sphinx_highlight_terms");
    });
  }

  addSwitch();
  enlargeFigures();
  forgetSearch();
  openTarget();
  addEventListener("hashchange", openTarget);
  addEventListener("beforeprint", beforePrint);
  addEventListener("afterprint", afterPrint);
  let waiting = 0;
  const fitSoon = () => {
    clearTimeout(waiting);
    waiting = setTimeout(fit, 150);
  };
  addEventListener("resize", fitSoon);
  document.addEventListener("toggle", fitSoon, true);
  addEventListener("load", () => {
    fit();
    window.MathJax?.startup?.promise?.then(fit);
  });
})();
