// Draws the lines of a report with uPlot, and on demand the tables of the same figures. Reads the JSON inside the
// page and fetches nothing.
(function () {
  "use strict";
  const MARKS = ["M0-4A4 4 0 1 1 0 4A4 4 0 1 1 0-4Z", "M-4-4H4V4H-4Z", "M0-5L5 4H-5Z", "M0-5L5 0L0 5L-5 0Z",
    "M0 5L5-4H-5Z", "M-4-4L4 4M4-4L-4 4", "M0-5V5M-5 0H5", "M-4-2H4V2H-4Z"];
  const DASHES = [[], [9, 4], [2, 3], [10, 3, 2, 3], [5, 3], [14, 4], [3, 5], [10, 3, 2, 3, 2, 3]];
  const STATS = ["avg", "p50", "p99", "max"];
  const HEIGHT = 280;
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("report-data").textContent);
  const charts = new Map(data.charts.map(chart => [chart.id, chart]));
  const drawn = [];
  let stat = "p99";

  // Colours repeat from the ninth engine on. Dash and marker differ then.
  const look = engine => engine % MARKS.length;
  const dash = engine => DASHES[(engine + 3 * Math.floor(engine / 8)) % DASHES.length];
  const shape = engine => MARKS[(engine + 5 * Math.floor(engine / 8)) % MARKS.length];
  const FONT = "12px system-ui, sans-serif";
  const paper = document.createElement("canvas").getContext("2d");
  const brief = name => name.length > 18 ? name.slice(0, 8) + "…" + name.slice(-9) : name;
  const widest = names => { paper.font = FONT; return Math.max(0, ...names.map(name => paper.measureText(name).width)); };
  const style = name => getComputedStyle(root).getPropertyValue(name).trim();
  // Numbers have three digits, as in the tables of the page. Ticks of an axis have no zeros at the end of a fraction.
  const places = value => value >= 99.95 || value === 0 ? 0 : value >= 9.995 ? 1 : value >= 0.01 ? 2 : Math.ceil(1 - Math.log10(value));
  const digits = (value, least) => value == null ? "–"
    : value.toLocaleString("en", { minimumFractionDigits: Math.min(least, 20), maximumFractionDigits: Math.min(places(value), 20) });
  const number = value => digits(value, value == null ? 0 : places(value));
  const tick = value => digits(value, 0);
  const short = value => value >= 1e9 ? value / 1e9 + "G" : value >= 1e6 ? value / 1e6 + "M" : value >= 1e3 ? value / 1e3 + "k" : String(value);
  const nines = value => value === 0 ? "0%" : Number((100 - 100 * Math.pow(10, -value)).toFixed(Math.max(0, Math.ceil(value) - 2))) + "%";
  const named = chart => chart.kind === "nines" ? "latency" : stat;
  const ranges = (line, name) => (line.ranges.find(([key]) => key === name) || ["", []])[1];
  const values = (line, name) => (line.y.find(([key]) => key === name) || ["", []])[1];
  const xText = (chart, x) => chart.kind === "nines" ? nines(x) : chart.kind === "caps" ? (chart.ticks[x] || "")
    : chart.kind === "size" ? Math.round(x).toLocaleString("en") : tick(x) + " s";

  // Returns one range for all charts that share an axis. It is logarithmic if the values span a decade.
  function range(chart) {
    let low = Infinity, high = 0;
    for (const other of data.charts) {
      if (other.share !== chart.share) continue;
      const all = other.lines.flatMap(line => values(line, named(other))).concat(other.device_us, other.lines.flatMap(line => ranges(line, named(other)).flat()));
      for (const value of all) if (value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
    }
    if (high === 0) return { log: false, low: 0, high: 1 };
    const log = high / low >= 8;
    return { log, low: log ? low / 1.25 : 0, high: high * (log ? 1.25 : 1.08) };
  }

  function logSplits(low, high) {
    const leads = high / low > 2000 ? [1] : [1, 2, 5], splits = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
      for (const lead of leads) {
        const at = Number((lead * Math.pow(10, power)).toPrecision(1));
        if (at >= low && at <= high) splits.push(at);
      }
    return splits;
  }

  // Keeps only the names that have room next to the one before.
  function apart(u, at, names) {
    let end = -Infinity;
    return names.map((name, i) => {
      const middle = u.valToPos(at[i], "x"), half = name.length * 4;
      if (middle - half < end + 7 || middle + half > u.bbox.width / devicePixelRatio + 24) return "";
      end = middle + half;
      return name;
    });
  }

  function xAxis(chart) {
    const at = chart.ticks.map((_, i) => i);
    if (chart.kind === "caps") return { splits: () => at, values: u => apart(u, at, chart.ticks) };
    if (chart.kind === "nines") {
      const end = Math.floor(Math.max(...chart.lines.flatMap(line => line.x)) + 1e-9);
      const ticks = [0.30103].concat(Array.from({ length: end }, (_, at) => at + 1));
      return { splits: () => ticks, values: u => apart(u, ticks, ticks.map(nines)) };
    }
    return { values: (_, at) => at.map(short), space: 60 };
  }

  function options(chart, width) {
    const ys = range(chart);
    const wide = width >= 460;
    const font = FONT;
    const axis = { stroke: style("--fg"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") }, font, labelFont: font };
    const names = chart.lines.map(line => data.engines[line.engine]);
    const right = wide ? 28 + widest(names.map(brief)) : 24;
    const label = "latency, µs" + (chart.kind === "nines" ? "" : " (" + stat + ")") + (ys.log ? ", log" : "");
    const xs = chart.kind === "caps" ? [-0.25, chart.ticks.length - 0.75] : null;
    return {
      width, height: HEIGHT, padding: [10, right, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
      scales: {
        x: { time: false, range: (_, low, high) => xs || [chart.kind === "time" ? Math.min(0, low) : low, high > low ? high : low + 1] },
        y: { distr: ys.log ? 3 : 1, log: 10, range: [ys.low, ys.high] },
      },
      axes: [
        { ...axis, ...xAxis(chart), label: chart.x, labelSize: 20, size: 32 },
        { ...axis, label, labelSize: 20, space: 26, values: (_, at) => at.map(tick), splits: ys.log ? () => logSplits(ys.low, ys.high) : undefined,
          filter: ys.log ? (_, at) => at : undefined,
          size: (_, texts) => 24 + widest(texts || []) },
      ],
      series: [{}].concat(chart.lines.map(line => ({
        label: data.engines[line.engine], stroke: style("--engine-" + look(line.engine)), width: 1.8, dash: dash(line.engine),
        spanGaps: false, points: { show: false },
      }))),
      hooks: { drawAxes: [u => device(u, chart)], drawSeries: [(u, at) => marks(u, at, chart)], draw: [u => { if (wide) ends(u, chart); }] },
    };
  }

  function device(u, chart) {
    if (!chart.device_us) return;
    const { ctx, bbox } = u, scale = devicePixelRatio, y = u.valToPos(chart.device_us, "y", true);
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = style("--muted");
    ctx.setLineDash([2 * scale, 4 * scale]);
    ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
    ctx.restore();
  }

  // Draws about eight markers on each line, evenly apart and at other places than those of the other lines.
  function marks(u, at, chart) {
    const xs = u.data[0], ys = u.data[at], engine = chart.lines[at - 1].engine, scale = devicePixelRatio;
    const path = new Path2D(shape(engine)), step = chart.kind === "caps" ? 0 : u.bbox.width / 8;
    whiskers(u, chart, chart.lines[at - 1]);
    let next = u.bbox.left + step * at / (chart.lines.length + 1);
    for (let i = 0; i < xs.length; i++) {
      const x = ys[i] == null ? -1 : u.valToPos(xs[i], "x", true);
      if (x < next) continue;
      mark(u, x, u.valToPos(ys[i], "y", true), path, engine, scale);
      next = Math.max(next, x - step / 2) + step;
    }
  }

  // Draws the range from the smallest to the largest repeat at each point.
  function whiskers(u, chart, line) {
    const { ctx } = u, wing = 4 * devicePixelRatio;
    ctx.save();
    ctx.strokeStyle = style("--engine-" + look(line.engine)); ctx.lineWidth = 1.5 * devicePixelRatio; ctx.setLineDash([]);
    ranges(line, named(chart)).forEach((range, i) => {
      if (!range) return;
      const x = u.valToPos(line.x[i], "x", true), [low, high] = range.map(value => u.valToPos(value, "y", true));
      ctx.beginPath(); ctx.moveTo(x, low); ctx.lineTo(x, high);
      for (const y of [low, high]) { ctx.moveTo(x - wing, y); ctx.lineTo(x + wing, y); }
      ctx.stroke();
    });
    ctx.restore();
  }

  function mark(u, x, y, path, engine, scale) {
    const { ctx } = u;
    ctx.save();
    ctx.translate(x, y); ctx.scale(scale, scale);
    ctx.fillStyle = style("--bg"); ctx.strokeStyle = style("--engine-" + look(engine)); ctx.lineWidth = 1.6; ctx.setLineDash([]);
    ctx.fill(path); ctx.stroke(path);
    ctx.restore();
  }

  // Draws the names at the ends of the lines, and moves them apart where the ends meet.
  function ends(u, chart) {
    const scale = devicePixelRatio, step = 14 * scale, labels = [];
    chart.lines.forEach((line, at) => {
      if (!u.series[at + 1].show) return;
      const ys = u.data[at + 1];
      for (let i = ys.length - 1; i >= 0; i--) if (ys[i] != null) { labels.push({ engine: line.engine, x: u.valToPos(u.data[0][i], "x", true), y: u.valToPos(ys[i], "y", true) }); break; }
    });
    labels.sort((a, b) => a.y - b.y);
    const top = u.bbox.top + step / 2, bottom = u.bbox.top + u.bbox.height;
    labels.forEach((label, at) => { label.at = Math.max(label.y, at ? labels[at - 1].at + step : top); });
    for (let at = labels.length - 1, limit = bottom; at >= 0; at--, limit -= step) labels[at].at = Math.min(labels[at].at, limit);
    const { ctx } = u, right = u.bbox.left + u.bbox.width;
    ctx.save();
    ctx.strokeStyle = style("--muted"); ctx.lineWidth = scale * 0.7; ctx.setLineDash([]);
    for (const label of labels) {
      ctx.beginPath(); ctx.moveTo(label.x + 3 * scale, label.y); ctx.lineTo(Math.max(right, label.x + 3 * scale), label.at); ctx.lineTo(right + 6 * scale, label.at); ctx.stroke();
    }
    ctx.font = 12 * scale + "px system-ui, sans-serif"; ctx.textAlign = "left"; ctx.textBaseline = "middle";
    for (const label of labels) {
      const name = data.engines[label.engine];
      mark(u, right + 12 * scale, label.at, new Path2D(shape(label.engine)), label.engine, scale * 0.8);
      ctx.fillStyle = style("--fg");
      ctx.fillText(brief(name), right + 20 * scale, label.at);
    }
    ctx.restore();
  }

  function legend(chart, holder, plot) {
    const box = document.createElement("div");
    box.className = "legend";
    const outs = chart.lines.map((line, at) => {
      const button = document.createElement("button"), out = document.createElement("output"), name = document.createElement("span");
      button.type = "button";
      button.className = "engine-" + look(line.engine);
      button.setAttribute("aria-pressed", "true");
      button.title = "Show or hide this line";
      button.innerHTML = '<svg width="34" height="12" viewBox="-17 -6 34 12" aria-hidden="true"><path d="M-17 0H17" fill="none" stroke="currentColor" stroke-width="2" stroke-dasharray="'
        + dash(line.engine).join(" ") + '"/><path d="' + shape(line.engine) + '" fill="var(--bg)" stroke="currentColor" stroke-width="1.6"/></svg>';
      name.textContent = data.engines[line.engine];
      button.append(name, out);
      button.addEventListener("click", () => {
        const on = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(on));
        if (plot.u) plot.u.setSeries(at + 1, { show: on });
      });
      box.append(button);
      return out;
    });
    if (chart.device_us) {
      const device = document.createElement("span");
      device.textContent = "dotted: device 4 KiB random read p50 " + tick(chart.device_us) + " µs";
      device.className = "device";
      box.append(device);
    }
    holder.after(box);
    return outs;
  }

  // Shows the value of each line that is nearest to the pointer, with its own x.
  function hovered(plot) {
    const { u, chart, outs } = plot;
    if (u.cursor.left == null || u.cursor.left < 0) return outs.forEach(out => { out.textContent = ""; });
    const x = u.posToVal(u.cursor.left, "x");
    outs.forEach((out, at) => {
      let near = -1;
      chart.lines[at].x.forEach((each, i, all) => { if (near < 0 || Math.abs(each - x) < Math.abs(all[near] - x)) near = i; });
      out.textContent = near < 0 ? "" : number(values(chart.lines[at], named(chart))[near]) + " µs at " + xText(chart, chart.lines[at].x[near]);
    });
  }

  function draw(plot) {
    const { chart, holder } = plot;
    // A closed fold has no width to draw in. The observer calls again once it opens.
    if (!holder.clientWidth) return;
    const tables = chart.lines.map(line => [line.x, values(line, named(chart))]);
    const joined = tables.length > 1 ? uPlot.join(tables) : tables[0];
    const shown = plot.u && plot.u.series.map(series => series.show);
    if (plot.u) plot.u.destroy();
    const opts = options(chart, holder.clientWidth);
    opts.hooks.setCursor = [() => { if (plot.u) hovered(plot); }];
    plot.u = new uPlot(opts, joined, holder);
    if (shown) shown.forEach((show, at) => { if (at && !show) plot.u.setSeries(at, { show }); });
    holder.setAttribute("role", "img");
    holder.setAttribute("aria-label", chart.title + ": lines of " + chart.lines.map(line => data.engines[line.engine]).join(", ") + "; the figures are in the table below");
    if (plot.details.open) fill(plot);
  }

  // Fills the table of a chart's figures, with a row for every x of any line.
  function fill(plot) {
    const { chart } = plot, table = document.createElement("table");
    const row = (parent, cells, tag) => {
      const line = parent.insertRow();
      cells.forEach((text, at) => {
        const cell = document.createElement(at === 0 ? "th" : tag);
        cell.textContent = text;
        line.append(cell);
      });
    };
    table.createCaption().textContent = "latency, µs" + (chart.kind === "nines" ? "" : ", " + stat);
    row(table.createTHead(), [chart.x].concat(chart.lines.map(line => data.engines[line.engine])), "th");
    const text = (line, i) => {
      const range = ranges(line, named(chart))[i];
      return number(values(line, named(chart))[i]) + (range ? " (" + range.map(number).join("–") + ")" : "");
    };
    const at = chart.lines.map(line => new Map(line.x.map((x, i) => [x, text(line, i)])));
    const body = table.createTBody(), xs = [...new Set(chart.lines.flatMap(line => line.x))].sort((a, b) => a - b);
    for (const x of xs) row(body, [xText(chart, x)].concat(at.map(known => known.get(x) || number(null))), "td");
    plot.details.querySelector(".scroll").replaceChildren(table);
  }

  function controls() {
    const box = document.getElementById("controls");
    const label = document.createElement("label"), select = document.createElement("select"), theme = document.createElement("button");
    label.textContent = "Lines show ";
    for (const name of STATS) select.add(new Option(name, name, name === stat, name === stat));
    select.addEventListener("change", () => { stat = select.value; drawn.filter(plot => plot.chart.kind !== "nines").forEach(draw); });
    label.append(select);
    theme.type = "button";
    const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const name = () => { theme.textContent = dark() ? "Light" : "Dark"; };
    theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; name(); drawn.forEach(draw); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { name(); drawn.forEach(draw); });
    name();
    const folds = [...document.querySelectorAll("details.fold")], all = document.createElement("button");
    all.type = "button";
    all.textContent = "Unfold all";
    all.addEventListener("click", () => {
      const open = folds.some(fold => !fold.open);
      folds.forEach(fold => { fold.open = open; });
      all.textContent = open ? "Fold all" : "Unfold all";
    });
    if (charts.size) box.append(label);
    if (folds.length) box.append(all);
    box.append(theme);
  }

  const wanted = new URLSearchParams(location.search).get("theme");
  if (wanted === "dark" || wanted === "light") root.dataset.theme = wanted;
  controls();
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const plot = { chart: charts.get(figure.dataset.chart), holder: figure.querySelector(".plot"), details: figure.querySelector("details"), u: null };
    plot.outs = legend(plot.chart, plot.holder, plot);
    plot.details.addEventListener("toggle", () => { if (plot.details.open) fill(plot); });
    draw(plot);
    drawn.push(plot);
    let width = plot.holder.clientWidth;
    new ResizeObserver(() => {
      if (plot.holder.clientWidth !== width) { width = plot.holder.clientWidth; draw(plot); }
    }).observe(plot.holder);
  }
})();
