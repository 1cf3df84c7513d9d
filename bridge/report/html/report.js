"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name in element && name !== "list") element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  };

  // -- tables sort, texts are copied, what agrees can be hidden -------------------------------------------------

  const key = (row, column) => {
    const cell = row.cells[column];
    const number = cell.dataset.sort ?? cell.textContent.trim();
    return number !== "" && !isNaN(number) ? Number(number) : cell.textContent.trim();
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number" ? a - b
    : typeof a === "number" ? -1 : typeof b === "number" ? 1
    : a.localeCompare(b, "en", { numeric: true });

  document.addEventListener("click", (event) => {
    const button = event.target.closest("button.sort");
    if (!button) return;
    const header = button.closest("th");
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = header.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, header.cellIndex), row]);
    rows.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
    body.append(...rows.map(([, row]) => row));
  });

  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or an old browser from disk
      const area = make("textarea", { value: text, className: "hidden" });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button.copy");
    if (!button) return;
    await copy(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "copied";
    document.getElementById("said").textContent = "copied to the clipboard";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });

  document.getElementById("only-wrong")?.addEventListener("change", (event) => {
    document.getElementById("verdicts").classList.toggle("only-wrong", event.target.checked);
  });

  // -- charts --------------------------------------------------------------------------------------------------

  const SYMBOL = { agrees: "✓", disagrees: "✗", "not finite": "∞", "not repeatable": "≠" };
  const COLORS = [0, 1, 2, 3, 4, 5].map((i) => `var(--c${i})`);
  const SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down"];
  const DRAWN = {
    circle: "M8 3a5 5 0 1 0 .01 0z", square: "M3.5 3.5h9v9h-9z", "triangle-up": "M8 2.5l6 10.5H2z", diamond: "M8 1.5L13.5 8 8 14.5 2.5 8z",
    cross: "M6.2 2h3.6v4.2H14v3.6H9.8V14H6.2V9.8H2V6.2h4.2z", "triangle-down": "M8 13.5L2 3h12z",
  };
  const PANELS = 6; // of their own for cases that disagree; the others share one
  const SHOWN = 6; // series at first
  const digits = (value, n) => (value === null ? "none" : Number(value.toPrecision(n)).toString());

  const short = (names) => {
    const lines = new Map();
    for (const name of names) {
      const [line, variant] = [name.slice(0, name.indexOf("/")), name.slice(name.indexOf("/") + 1)];
      lines.set(line, [...(lines.get(line) ?? []), variant]);
    }
    return [...lines].map(([line, v]) => `${line}/${v.length > 1 ? `{${v.join(", ")}}` : v[0]}`).join(", ");
  };

  const counted = (names) => {
    const lines = names.map((name) => name.slice(0, name.indexOf("/")));
    return [...new Set(lines)].map((line) => `${lines.filter((other) => other === line).length} of ${line}`).join(", ").replace(" of ", " variants of ");
  };
  const MOST_NAMES = 8;
  const brief = (names) => (names.length > MOST_NAMES ? counted(names) : short(names));
  const folded = (names) => names.length > MOST_NAMES
    ? [make("details", { className: "who" }, make("summary", { textContent: counted(names) }), short(names))] : [short(names)];

  const axis = {
    labelColor: "var(--mute)", titleColor: "var(--mute)", domainColor: "var(--line)", tickColor: "var(--line)",
    gridColor: "var(--line)", labelFontSize: 11, titleFontSize: 11, titleFontWeight: "normal",
  };
  const CONFIG = {
    background: "transparent", font: "system-ui, sans-serif", view: { stroke: null }, axis,
    legend: { labelColor: "var(--mute)", labelFontSize: 11 },
  };
  const WITHOUT_LEGEND = { ...CONFIG, legend: { disable: true } };

  const embed = (holder, spec, renderer = "svg") =>
    vegaEmbed(holder, { $schema: "https://vega.github.io/schema/vega-lite/v6.json", config: CONFIG, ...spec }, { renderer, actions: false, tooltip: { theme: "custom" } })
      .catch((error) => { holder.textContent = `This chart could not be drawn: ${error.message}`; });

  // One chart over the steps: layers above a log or linear axis.
  const overSteps = (holder, description, rows, layers) => {
    const layer = layers.filter((one) => (one.data?.values ?? rows).length);
    if (!layer.length) {
      holder.textContent = "There are no values.";
      return null;
    }
    return embed(holder, { description, config: WITHOUT_LEGEND, width: "container", height: 210, autosize: { type: "fit", contains: "padding" }, data: { values: rows }, layer });
  };

  const stepAxis = (n) => {
    const every = Math.ceil(n / 20);
    const values = [...Array(n).keys()].filter((t) => t % every === 0);
    return { field: "t", type: "quantitative", title: "time step t", scale: { domain: [-0.5, n - 0.5], nice: false }, axis: { values, format: "d", grid: false } };
  };
  const marks = (ids) => ({
    color: { field: "id", type: "nominal", scale: { domain: ids, range: COLORS } },
    shape: { field: "id", type: "nominal", scale: { domain: ids, range: SHAPES } },
  });

  const drawErrors = (holder, figure, shown) => {
    const n = figure.length;
    const all = figure.series.flatMap((one) => [...figure.numbers[one.error], ...figure.numbers[one.tolerance]]).filter((v) => v > 0);
    const low = 10 ** Math.floor(Math.log10(Math.min(...all, 1)) - 0.5);
    const high = Math.max(...all, low * 10) * 2;
    const rows = shown.flatMap((one) => figure.numbers[one.error].map((error, t) => ({
      t, id: one.id, error: Math.max(error, low), worst: digits(error, 3), tolerance: digits(figure.numbers[one.tolerance][t], 3),
      who: one.label, verdict: one.verdict, known: error !== null,
    }))).filter((row) => row.known);
    const bands = [...Array(n).keys()].map((t) => {
      const all = shown.map((one) => figure.numbers[one.tolerance][t]).filter((v) => v > 0);
      return { low, every: Math.min(...all), some: Math.max(...all), from: t - 0.5, to: t + 0.5 };
    }).filter((band) => isFinite(band.every));
    const y = (field, more) => ({ field, type: "quantitative", scale: { type: "log", domain: [low, high], nice: false, clamp: true }, title: "absolute error", axis: { format: ".0e", tickCount: 6 }, ...more });
    const x = stepAxis(n);
    return overSteps(holder, "Error at each time step against the tolerance", rows, [
      { data: { values: bands }, mark: { type: "rect", color: "var(--band)", opacity: 0.12 }, encoding: { x: { ...x, field: "from" }, x2: { field: "to" }, y: y("low"), y2: { field: "some" } } },
      { data: { values: bands }, mark: { type: "rect", color: "var(--band)", opacity: 0.12 }, encoding: { x: { ...x, field: "from" }, x2: { field: "to" }, y: y("low"), y2: { field: "every" } } },
      { data: { values: bands }, mark: { type: "rule", color: "var(--band)", strokeDash: [4, 3], strokeWidth: 1.5 }, encoding: { x: { ...x, field: "from" }, x2: { field: "to" }, y: y("every") } },
      { mark: { type: "line", strokeWidth: 1.5 }, encoding: { x, y: y("error"), color: marks(shown.map((one) => one.id)).color } },
      { mark: { type: "point", filled: true, size: 60, opacity: 1 }, encoding: { x, y: y("error"), ...marks(shown.map((one) => one.id)), tooltip: [
        { field: "who", title: "backend" }, { field: "t", title: "time step" }, { field: "worst", title: "error" }, { field: "tolerance", title: "tolerance" }, { field: "verdict", title: "gradient" }] } },
    ]);
  };

  // Whether differences are too small beside the values to be seen, so that their ratio shows more.
  const closeBy = (figure, series, element) => series.every((one) => {
    const truth = figure.numbers[one.reference[element]];
    const gaps = figure.numbers[one.values[element]].map((value, t) => (value === null ? 0 : Math.abs(value - truth[t])));
    const sizes = truth.map(Math.abs);
    return Math.max(...gaps) < 0.05 * (Math.max(...truth) - Math.min(...truth)) && Math.min(...sizes) > 1e-3 * Math.max(...sizes);
  });

  const drawValues = (holder, figure, shown, element, ratio) => {
    const x = stepAxis(figure.length);
    const y = { field: "value", type: "quantitative", title: ratio ? "value ÷ reference" : "value", scale: { zero: false }, axis: { format: "~g", tickCount: 6 } };
    const list = (name, one) => figure.numbers[one[name][element]];
    const plotted = (value, truth) => (value === null || truth === null || (ratio && truth === 0) ? null : ratio ? value / truth : value);
    const rows = shown.flatMap((one) => list("values", one).map((value, t) => ({
      t, id: one.id, value: plotted(value, list("reference", one)[t]), said: digits(value, 9), reference: digits(list("reference", one)[t], 9), who: one.label, verdict: one.verdict,
    }))).filter((row) => row.value !== null);
    const truths = [...new Set(shown.map((one) => one.reference[element]))].flatMap((index) =>
      figure.numbers[index].map((value, t) => ({ t, index, value: plotted(value, value), said: digits(value, 9) }))).filter((row) => row.value !== null);
    return overSteps(holder, "Value of one element at each time step beside the reference", rows, [
      { data: { values: truths }, mark: { type: "line", color: "var(--band)", strokeWidth: 5, opacity: 0.45, strokeCap: "round" }, encoding: { x, y, detail: { field: "index" } } },
      { data: { values: truths }, mark: { type: "point", color: "var(--band)", size: 220, opacity: 0.6, filled: true }, encoding: { x, y, tooltip: [{ field: "t", title: "time step" }, { field: "said", title: "reference" }] } },
      { mark: { type: "line", strokeWidth: 1.5 }, encoding: { x, y, color: marks(shown.map((one) => one.id)).color } },
      { mark: { type: "point", filled: true, size: 60, opacity: 1 }, encoding: { x, y, ...marks(shown.map((one) => one.id)), tooltip: [
        { field: "who", title: "backend" }, { field: "t", title: "time step" }, { field: "said", title: "value" }, { field: "reference", title: "reference" }, { field: "verdict", title: "gradient" }] } },
    ]);
  };

  // -- panels: controls around charts, drawn when they come into view -------------------------------------------

  const choose = (label, options, pick) => {
    const select = make("select");
    options.forEach(([text], index) => select.append(make("option", { value: index, textContent: text })));
    select.addEventListener("change", () => pick(options[select.value][1]));
    return make("label", {}, `${label} `, select);
  };

  const byCase = (figures) => {
    const cases = new Map();
    for (const figure of figures) cases.set(figure.case, [...(cases.get(figure.case) ?? []), figure]);
    return [...cases.values()];
  };

  const chart = (title) => {
    const holder = make("div", { className: "drawing" });
    return [make("div", { className: "chart" }, make("h4", { textContent: title }), holder), holder];
  };

  const stepsTitle = (figure) =>
    `${figure.quantity === "y" ? "y" : "dL/dx"}, length ${figure.length}${figure.loss === null ? "" : `, loss step ${figure.loss} alone`}${isWrong(figure) ? " ✗" : " ✓"}`;
  const isWrong = (figure) => figure.wrong ?? figure.series.some((one) => one.verdict !== "agrees");

  const symbol = (slot) => {
    const icon = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
    for (const [name, value] of [["width", 14], ["height", 14], ["viewBox", "0 0 16 16"]]) icon.setAttribute(name, value);
    path.setAttribute("d", DRAWN[SHAPES[slot]]);
    path.setAttribute("fill", COLORS[slot]);
    icon.append(path);
    return icon;
  };

  const stepsBody = (figure, controls, body) => {
    const series = figure.series.map((one, index) => ({ ...one, id: String(index), label: brief(one.backends) }));
    const bad = series.filter((one) => one.verdict !== "agrees");
    let shown = [...bad.slice(0, SHOWN - 1), ...series.filter((one) => one.verdict === "agrees").slice(0, 1)];
    let element = 0;
    let ratio = closeBy(figure, bad.length ? bad : series, element);
    const [left, errors] = chart("Error at each step");
    const [right, values] = chart("Value (marks) beside the reference (grey)");
    const legend = make("ul", { className: "legend" });
    let opened = false;
    const draw = () => {
      const drawn = Promise.all([drawErrors(errors, figure, shown), drawValues(values, figure, shown, element, ratio)]);
      const entry = (one) => {
        const slot = shown.indexOf(one);
        const box = make("input", { type: "checkbox", checked: slot >= 0 });
        box.addEventListener("change", () => {
          shown = box.checked ? [...shown, one].slice(-SHOWN) : shown.filter((other) => other !== one);
          draw();
        });
        const label = make("label", {}, box);
        if (slot >= 0) label.append(symbol(slot));
        label.append(make("span", { className: one.verdict === "agrees" ? "good" : "bad", textContent: ` ${SYMBOL[one.verdict] ?? "-"} ${one.verdict} ` }));
        if (one.backends.length > MOST_NAMES) return make("li", {}, label, ...folded(one.backends));
        label.append(one.label);
        return make("li", {}, label);
      };
      const first = series.filter((one) => one.verdict !== "agrees" || shown.includes(one));
      const others = series.filter((one) => !first.includes(one));
      legend.replaceChildren(...first.map(entry));
      if (others.length) {
        const more = make("details", { open: opened }, make("summary", { textContent: `${others.length} more, which agree` }), make("ul", { className: "legend" }, ...others.map(entry)));
        more.addEventListener("toggle", () => { opened = more.open; });
        legend.append(make("li", {}, more));
      }
      return drawn;
    };
    if (figure.elements.length > 1) {
      controls.append(choose("element", figure.elements.map(([b, i], index) => [`batch ${b}, row ${i}`, index]), (index) => { element = index; draw(); }));
    } else {
      controls.append(make("span", { className: "mute", textContent: `element: batch ${figure.elements[0][0]}, row ${figure.elements[0][1]}` }));
    }
    const ways = [["values", false], ["value ÷ reference", true]];
    controls.append(choose("second chart", ratio ? ways.reverse() : ways, (way) => { ratio = way; draw(); }));
    body.append(make("div", { className: "charts" }, left, right), legend);
    return draw();
  };

  // -- Jacobian maps -------------------------------------------------------------------------------------------

  const MEANS = new Map([[".", "zero, rightly"], ["o", "right"], ["X", "wrong"], ["0", "wrongly zero"], ["+", "wrongly non-zero"], ["?", "no value"]]);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name);

  const drawMap = (holder, title, blocks, field, { domain, scheme, active }) => {
    const steps = Math.max(...blocks.map((block) => block.t)) + 1;
    const big = blocks.length > 1600;
    const paint = (name) => (big ? css(name) : `var(${name})`);
    const cell = 250 / steps;
    const part = (value) => (Math.log(value) - Math.log(domain[0])) / (Math.log(domain[1]) - Math.log(domain[0]) || 1);
    const rows = blocks.map((block) => ({ ...block, live: active(block) && block[field] > 0, ink: active(block) && block[field] > 0 ? ((scheme === "viridis") === part(block[field]) > 0.6 ? "#000" : part(block[field]) > 0.5 || scheme === "viridis" ? "#fff" : "#000") : paint("--mute") }));
    const x = { field: "t", type: "ordinal", title: "input step t", axis: { labelAngle: 0, labelOverlap: true, ticks: false, domain: false } };
    const y = { field: "s", type: "ordinal", title: "loss step s", axis: { labelOverlap: true, ticks: false, domain: false } };
    const tooltip = [
      { field: "s", title: "loss step s" }, { field: "t", title: "input step t" }, { field: "v", title: "backend" }, { field: "r", title: "reference" },
      { field: "d", title: "largest difference" }, { field: "means", title: "this block is" }];
    const layers = [
      { transform: [{ filter: "!datum.live" }], mark: { type: "rect", fill: paint("--soft"), stroke: paint("--line"), strokeWidth: big ? 0 : 0.5 }, encoding: { x, y, tooltip } },
      { transform: [{ filter: "datum.live" }], mark: { type: "rect", stroke: paint("--line"), strokeWidth: big ? 0 : 0.5 }, encoding: { x, y, tooltip,
        color: { field, type: "quantitative", scale: { type: "log", domain, scheme }, legend: rows.some((row) => row.live) ? { title: null, orient: "bottom", gradientLength: 220, gradientThickness: 8, format: ".0e", tickCount: 3 } : null } } },
    ];
    if (cell >= 9) layers.push({ mark: { type: "text", fontSize: Math.min(15, cell * 0.6), font: "ui-monospace, monospace", fontWeight: 600 }, encoding: { x, y, text: { field: "mark" }, color: { field: "ink", type: "nominal", scale: null, legend: null }, tooltip } });
    return embed(holder, { description: title, width: 250, height: 250, data: { values: rows }, layer: layers, resolve: { scale: { color: "independent" } } }, big ? "canvas" : "svg");
  };

  const mapsBody = (figure, controls, body) => {
    const draw = (one) => {
      body.replaceChildren();
      const [reference, a] = chart("Reference");
      const [backend, b] = chart("Backend");
      const [difference, c] = chart("Difference");
      body.append(
        make("p", { className: "mute note" }, ...folded(one.backends)),
        make("div", { className: "charts maps" }, reference, backend, difference),
      );
      const list = (name) => figure.numbers[one[name]];
      const steps = [...one.marks].length / one.steps;
      const blocks = [...one.marks].map((mark, index) => ({
        s: Math.floor(index / steps), t: index % steps, mark, means: MEANS.get(mark),
        v: list("value")[index], r: list("reference")[index], d: list("difference")[index],
      }));
      const sizes = blocks.flatMap((block) => [block.v, block.r]).filter((value) => value > 0);
      const domain = sizes.length ? [Math.min(...sizes) / 1.01, Math.max(...sizes) * 1.01] : [0.1, 1];
      const isBad = (block) => "X0+".includes(block.mark);
      const gaps = blocks.filter(isBad).map((block) => block.d).filter((value) => value > 0);
      const gap = gaps.length ? [Math.min(...gaps) / 1.5, Math.max(...gaps) * 1.01] : [0.1, 1];
      return Promise.all([
        drawMap(a, "Jacobian map of the reference", blocks.map((block) => ({ ...block, mark: block.r === 0 ? "." : "" })), "r", { domain, scheme: "viridis", active: () => true }),
        drawMap(b, "Jacobian map of the backend", blocks, "v", { domain, scheme: "viridis", active: () => true }),
        drawMap(c, "Where they differ", blocks, "d", { domain: gap, scheme: "orangered", active: isBad }),
      ]);
    };
    const name = (one) => `${one.wrong ? "✗" : "✓"} ${brief(one.backends)}`;
    if (figure.series.length > 1) controls.append(choose("backend", figure.series.map((one) => [name(one), one]), draw));
    else controls.append(make("span", { textContent: figure.series[0].wrong ? "✗" : "✓" }));
    return draw(figure.series[0]);
  };

  // A panel for each case that disagrees, and one in which to pick among the others.
  const panels = (holder, figures, fill, figureTitle) => {
    const cases = byCase(figures);
    const own = cases.filter((some) => some.some(isWrong)).slice(0, PANELS);
    const rest = cases.filter((some) => !own.includes(some));
    const waiting = new Map();
    const build = (groups) => {
      const caption = make("figcaption");
      const body = make("div");
      const panel = make("figure", { className: "panel" }, caption, body);
      holder.append(panel);
      const show = (group) => {
        const inner = make("span", { className: "inner" });
        const pick = (figure) => {
          inner.replaceChildren();
          body.replaceChildren();
          return fill(figure, inner, body);
        };
        caption.replaceChildren(groups.length > 1 ? cased : make("strong", { textContent: group[0].case }));
        if (figureTitle && group.length > 1) caption.append(choose("shows", group.map((figure) => [figureTitle(figure), figure]), pick));
        else if (figureTitle) caption.append(make("span", { textContent: figureTitle(group[0]) }));
        caption.append(inner);
        return pick(group[0]);
      };
      const cased = groups.length > 1 ? choose("case", groups.map((group) => [`${group[0].case}${group.some(isWrong) ? " ✗" : " ✓"}`, group]), show) : null;
      waiting.set(panel, () => show(groups[0]));
    };
    own.forEach((group) => build([group]));
    if (rest.length) build(rest);
    const draw = async (panel) => {
      const start = waiting.get(panel);
      waiting.delete(panel);
      if (start) await start();
    };
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) if (entry.isIntersecting) { seen.unobserve(entry.target); draw(entry.target); }
    }, { rootMargin: "300px" });
    for (const panel of waiting.keys()) seen.observe(panel);
    return async () => { for (const panel of [...waiting.keys()]) await draw(panel); };
  };

  const later = [];
  const stepsHolder = document.getElementById("steps-panels");
  const mapsHolder = document.getElementById("maps-panels");
  if (stepsHolder) later.push(panels(stepsHolder, data.steps, stepsBody, stepsTitle));
  if (mapsHolder) {
    document.getElementById("map-keys").append(...[...MEANS].map(([mark, means]) => make("span", {}, make("code", { textContent: mark }), ` ${means}`)));
    later.push(panels(mapsHolder, data.maps, mapsBody, null));
  }

  // A printed page shows everything: what is not yet drawn is drawn when the browser is idle, what is folded unfolds.
  const rest = async () => {
    for (const drawAll of later) await drawAll();
    document.documentElement.dataset.drawn = "all";
  };
  addEventListener("load", () => (window.requestIdleCallback ?? setTimeout)(rest));
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("main details.wrong, main details.view, #again details")) details.open = true;
  });
})();
