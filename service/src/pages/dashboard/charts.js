// Charts: lines or a stack over time, and distributions by nines. The reports of loadgen draw with them as well. Owns:
// scales, axes, the cursor, the table that can replace a chart. Must not: know the meaning of its figures; it is given
// points.

const MARGIN = { top: 10, right: 62, bottom: 24, left: 58 };
const HEIGHT = 190;
/** Samples further apart than this have a gap between them, across which no line is drawn. */
const BREAK_MS = 2500;
const TABLE_ROWS = 15;

/** Returns about four ticks up to `max`, in steps of 1, 2 or 5 times a power of ten. */
function niceTicks(max, base) {
  const unit = base === 1024 ? 1024 ** Math.floor(Math.log(Math.max(max, 1)) / Math.log(1024)) : 1;
  const rough = max / unit / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power * unit;
  const ticks = [];
  for (let at = 0; at <= max + step * 0.001; at += step) ticks.push(at);
  return ticks;
}

/** Returns full decades around the values, and the places of labels: with few decades also at 2 and 5. */
function decades(min, max) {
  const low = Math.floor(Math.log10(min));
  const high = Math.max(low + 1, Math.ceil(Math.log10(max)));
  const ticks = [];
  for (let power = low; power <= high; power += 1) {
    for (const factor of high - low <= 2 ? [1, 2, 5] : [1])
      if (factor === 1 || power < high) ticks.push(factor * 10 ** power);
  }
  return { low: 10 ** low, high: 10 ** high, ticks: ticks.length > 8 ? ticks.filter((_, at) => at % 2 === 0) : ticks };
}

class Chart {
  /** Creates a chart. Options: title, note, lines [{label, style}], format, tick (the axis's own format), describe. */
  constructor(title, options) {
    this.title = title;
    this.options = options;
    this.cursor = null;
    this.button = el(
      'button',
      { type: 'button', 'aria-pressed': 'false', 'aria-label': `Table of: ${title}` },
      'Table',
    );
    this.swatches = options.lines.map((line) => {
      const value = el('b', {});
      return {
        value,
        node: el('span', { class: 'key' }, el('i', { class: `swatch ${line.style}` }), `${line.label} `, value),
      };
    });
    this.when = el('span', { class: 'when' });
    this.readout = el('p', { class: 'readout' }, ...this.swatches.map((swatch) => swatch.node), this.when);
    this.svg = svg('svg', { tabindex: '0', role: 'img', height: HEIGHT });
    this.empty = el('p', { class: 'empty', hidden: true });
    this.tableHost = el('div', { class: 'scroll', hidden: true, tabindex: '0' });
    const head = el('figcaption', {}, el('h3', {}, title), this.button);
    this.node = el('figure', { class: 'chart' }, head, this.readout, this.svg, this.empty, this.tableHost);
    this.svg.setAttribute(
      'aria-label',
      `Chart: ${title}. Left and right read its values; the button before it shows a table.`,
    );
    this.listen();
  }

  listen() {
    this.button.addEventListener('click', () => {
      const pressed = this.button.getAttribute('aria-pressed') !== 'true';
      this.button.setAttribute('aria-pressed', String(pressed));
      this.redraw();
    });
    this.svg.addEventListener('pointermove', (event) => {
      this.point(event.clientX - this.svg.getBoundingClientRect().left);
    });
    this.svg.addEventListener('pointerleave', () => this.point(null));
    this.svg.addEventListener('blur', () => this.point(null));
    this.svg.addEventListener('keydown', (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step === undefined || !this.stops) return;
      event.preventDefault();
      const at = this.stops.indexOf(this.cursor);
      const next = at < 0 ? this.stops.length - 1 : Math.min(this.stops.length - 1, Math.max(0, at + step));
      this.readout.setAttribute('aria-live', 'polite');
      this.cursor = this.stops[next] ?? null;
      this.redraw();
    });
  }

  /** Moves the cursor to the stop nearest to `px`; `null` removes the cursor. */
  point(px) {
    this.readout.removeAttribute('aria-live');
    const near = (best, stop) => (Math.abs(this.xOf(stop) - px) < Math.abs(this.xOf(best) - px) ? stop : best);
    this.cursor = px === null || !this.stops || this.stops.length === 0 ? null : this.stops.reduce(near);
    this.redraw();
  }

  draw(data) {
    this.data = data;
    this.redraw();
  }

  redraw() {
    if (!this.data) return;
    const asTable = this.button.getAttribute('aria-pressed') === 'true';
    const why = this.why();
    this.svg.toggleAttribute('hidden', asTable || why !== null);
    this.tableHost.hidden = !asTable || why !== null;
    this.empty.hidden = why === null;
    setText(this.empty, why || '');
    if (why !== null) {
      this.swatches.forEach((swatch) => setText(swatch.value, NONE));
      return;
    }
    if (asTable) this.tableHost.replaceChildren(this.asTable());
    this.plot();
  }

  /** Returns the size of the drawing area, in pixels. */
  size() {
    const width = Math.max(240, this.svg.clientWidth || this.node.clientWidth || 600);
    return { width, right: width - MARGIN.right, bottom: HEIGHT - MARGIN.bottom };
  }

  axes(yTicks, yOf, xTicks, xOf, format) {
    const { right, bottom } = this.size();
    const across = yTicks.map((tick) => [
      svg('line', { class: 'grid', x1: MARGIN.left, x2: right, y1: yOf(tick), y2: yOf(tick) }),
      svg(
        'text',
        { class: 'tick', x: MARGIN.left - 6, y: yOf(tick) + 4, 'text-anchor': 'end' },
        format(tick).replace(/\.00?(?!\d)/, ''),
      ),
    ]);
    const down = xTicks.map(([tick, text]) => [
      svg('line', { class: 'grid', x1: xOf(tick), x2: xOf(tick), y1: MARGIN.top, y2: bottom }),
      svg('text', { class: 'tick', x: xOf(tick), y: bottom + 16, 'text-anchor': 'middle' }, text),
    ]);
    return [...across.flat(), ...down.flat()];
  }

  /** Returns the names at the ends of lines, moved apart where they would overlap. */
  ends(labels) {
    const { right } = this.size();
    const sorted = labels.sort((one, two) => one.y - two.y);
    let last = -Infinity;
    const places = sorted.map(({ y }) => {
      last = Math.max(y, last + 12);
      return last;
    });
    // Several names at zero would end up below the chart: move them up from its foot.
    let limit = HEIGHT - 8;
    for (let at = places.length - 1; at >= 0; at -= 1) {
      places[at] = Math.min(places[at], limit);
      limit = places[at] - 12;
    }
    return sorted.map(({ label, style }, at) =>
      svg('text', { class: `end ${style}`, x: right + 5, y: places[at] + 4 }, label),
    );
  }

  /** Returns the cursor's line, and a dot on each value. */
  marks(values, yOf) {
    if (this.cursor === null) return [];
    const x = this.xOf(this.cursor);
    const dots = values.map((value, at) =>
      value === null || value === undefined
        ? null
        : svg('circle', { class: `dot ${this.options.lines[at].style}`, cx: x, cy: yOf(value), r: 3.5 }),
    );
    const { bottom } = this.size();
    return [svg('line', { class: 'cursor', x1: x, x2: x, y1: MARGIN.top, y2: bottom }), ...dots.filter(Boolean)];
  }
}

/** A chart over time. Data: {points: [{t, values, shade}], from, to}, ascending by t; an absent value is null. */
class TimeChart extends Chart {
  /** Returns a place on the x axis as text. */
  place(t) {
    return clock(t);
  }

  why() {
    return this.data.points.some((point) => point.values.some((value) => value !== null)) ? null : this.options.none;
  }

  xTicks() {
    const { from, to } = this.data;
    const wide = this.size().width > 480;
    const step = [15, 30, 60, 180, 300].find((seconds) => (to - from) / 1000 / seconds <= (wide ? 6 : 3)) * 1000;
    // Whole minutes of the reader's clock; time zones may differ by half an hour.
    const offset = new Date(to).getTimezoneOffset() * 60_000;
    const ticks = [];
    for (let at = Math.ceil((from - offset) / step) * step + offset; at <= to; at += step) {
      ticks.push([at, clock(at, step % 60_000 !== 0)]);
    }
    return ticks;
  }

  yScale() {
    const { scale, base, ceiling, least } = this.options;
    const { bottom } = this.size();
    const height = bottom - MARGIN.top;
    const cap = ceiling ? ceiling() : null;
    const of = (point) =>
      scale === 'stack' ? [point.values.reduce((sum, value) => sum + (value || 0), 0)] : point.values;
    const values = this.data.points.flatMap(of).filter((value) => value !== null);
    const largest = values.reduce((most, value) => Math.max(most, value), 0);
    if (scale === 'log') {
      const positive = values.concat(cap === null ? [] : [cap]).filter((value) => value > 0);
      const above = positive.reduce((least, value) => Math.min(least, value), Infinity);
      const { low, high, ticks } = decades(Number.isFinite(above) ? above : 1, Math.max(largest, cap || 1, 1));
      // Zero has no logarithm: it is drawn on a line of its own, a little below the lowest decade.
      const zero = values.some((value) => value <= 0);
      const floor = zero ? 14 : 0;
      const span = Math.log10(high / low);
      const yOf = (value) =>
        value <= 0 ? bottom : bottom - floor - (Math.log10(Math.max(value, low) / low) / span) * (height - floor);
      return { yOf, ticks: zero ? [0, ...ticks] : ticks, cap };
    }
    const shown = cap !== null && largest > cap / 8;
    const ticks = niceTicks((shown ? Math.max(cap, largest) : Math.max(largest, least || 1)) * 1.08, base);
    const top = Math.max(ticks[ticks.length - 1], (shown ? Math.max(cap, largest) : largest) * 1.08);
    return { yOf: (value) => bottom - (value / top) * height, ticks, cap: shown ? cap : null };
  }

  plot() {
    const { points, from, to } = this.data;
    const { right, bottom } = this.size();
    this.xOf = (t) => MARGIN.left + ((t - from) / (to - from)) * (right - MARGIN.left);
    this.stops = points.map((point) => point.t);
    if (this.cursor !== null && !this.stops.includes(this.cursor)) this.cursor = null;
    const { yOf, ticks, cap } = this.yScale();
    const format = this.options.format;
    const last = points[points.length - 1];
    const at = this.cursor === null ? last : points.find((point) => point.t === this.cursor);
    this.swatches.forEach((swatch, index) => setText(swatch.value, format(at.values[index])));
    setText(this.when, this.cursor === null ? '' : `at ${this.place(at.t)}`);
    if (this.svg.hasAttribute('hidden')) return;
    const stacked = this.options.scale === 'stack';
    const drawn = stacked ? this.areas(points, yOf) : this.lines(points, yOf);
    const sums = (values) =>
      values.map((_, index) => values.slice(0, index + 1).reduce((sum, value) => sum + (value || 0), 0));
    const heights = (values) => (stacked ? sums(values) : values);
    const labels = this.options.lines
      .map((line, index) => ({ y: heights(last.values)[index], label: line.short || line.label, style: line.style }))
      .filter((label) => label.y !== null && last.values.length > 1)
      .map((label) => ({ ...label, y: yOf(label.y) }));
    const capLine =
      cap === null || cap === undefined
        ? []
        : [
            svg('line', { class: 'cap', x1: MARGIN.left, x2: right, y1: yOf(cap), y2: yOf(cap) }),
            svg('text', { class: 'end', x: right + 5, y: yOf(cap) + 4 }, this.options.capName || 'cap'),
          ];
    this.svg.replaceChildren(
      ...this.shades(points, bottom),
      ...this.axes(ticks, yOf, this.xTicks(), this.xOf, this.options.tick || format),
      ...drawn,
      ...capLine,
      ...this.ends(labels),
      ...this.marks(heights(at.values), yOf),
    );
  }

  /** Returns shaded backgrounds for the points marked with `shade`. */
  shades(points, bottom) {
    const shades = [];
    points.forEach((point, at) => {
      if (!point.shade) return;
      const end = points[at + 1] && points[at + 1].t - point.t < BREAK_MS ? points[at + 1].t : point.t + 1000;
      const last = shades[shades.length - 1];
      if (last && last.end === point.t) last.end = end;
      else shades.push({ start: point.t, end });
    });
    const { right } = this.size();
    return shades.map(({ start, end }) =>
      svg('rect', {
        class: 'shade',
        x: this.xOf(start),
        width: Math.max(1, Math.min(right, this.xOf(end)) - this.xOf(start)),
        y: MARGIN.top,
        height: bottom - MARGIN.top,
      }),
    );
  }

  /** Returns the lines' paths, drawn so that the first line is on top. */
  lines(points, yOf) {
    return this.options.lines
      .map((line, index) => {
        const known = points.filter((point) => point.values[index] !== null);
        const gap = this.options.gap || BREAK_MS;
        const near = (one, two) => one !== undefined && two !== undefined && Math.abs(one.t - two.t) < gap;
        let path = '';
        let alone = '';
        known.forEach((point, at) => {
          const to = `${this.xOf(point.t).toFixed(1)},${yOf(point.values[index]).toFixed(1)}`;
          const joined = near(known[at - 1], point);
          path += joined ? `L${to}` : `M${to}`;
          // A line of zero length, which its round ends turn into a dot.
          if (!joined && !near(known[at + 1], point)) alone += `M${to}L${to}`;
        });
        const of = (kind, d) => svg('path', { class: `line ${kind} ${line.style}`, d });
        return [of('joined', path), of('alone', alone)];
      })
      .reverse()
      .flat();
  }

  areas(points, yOf) {
    const below = points.map(() => 0);
    return this.options.lines.map((line, index) => {
      const edge = points.map((point, at) => [this.xOf(point.t), yOf(below[at])]);
      points.forEach((point, at) => {
        below[at] += point.values[index] || 0;
      });
      const top = points.map((point, at) => [this.xOf(point.t), yOf(below[at])]);
      const text = (list) => list.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join('L');
      return svg('path', { class: `area ${line.style}`, d: `M${text(top)}L${text(edge.reverse())}Z` });
    });
  }

  asTable() {
    const { points } = this.data;
    const step = Math.max(1, Math.floor(points.length / TABLE_ROWS));
    const rows = points.filter((_, at) => (points.length - 1 - at) % step === 0).reverse();
    const heads = [this.options.axis || 'Time', ...this.options.lines.map((line) => line.label)];
    return table(
      this.title,
      heads,
      rows.map((point) => [this.place(point.t), ...point.values.map(this.options.format)]),
    );
  }
}

/** A chart of distributions. Data: {quantiles, curves: [{count, max_ns, values_ns} or null]}, one curve a line. */
class CurveChart extends Chart {
  why() {
    return this.data.curves.some((curve) => curve && curve.count > 0) ? null : this.options.none;
  }

  /** Returns the quantiles that have enough values: the largest of 100 values says nothing about 99.9%. */
  known(curve) {
    if (!curve || curve.count === 0) return [];
    const points = this.data.quantiles.map((quantile, at) => ({ quantile, value: curve.values_ns[at] }));
    return points.filter(({ quantile, value }) => value !== null && 1 / (1 - quantile) <= curve.count * 1.001);
  }

  plot() {
    const { right, bottom } = this.size();
    const curves = this.data.curves.map((curve) => this.known(curve));
    const nines = (quantile) => -Math.log10(1 - quantile);
    const all = curves.flat();
    const most = Math.max(2, Math.ceil(Math.max(...all.map((point) => nines(point.quantile))) - 0.001));
    this.xOf = (quantile) => MARGIN.left + (Math.min(nines(quantile), most) / most) * (right - MARGIN.left);
    this.stops = this.data.quantiles.filter((quantile) => all.some((point) => point.quantile === quantile));
    if (!this.stops.includes(this.cursor)) this.cursor = null;
    const values = all
      .map((point) => point.value)
      .concat(this.data.curves.filter(Boolean).map((curve) => curve.max_ns));
    const { low, high, ticks } = decades(
      Math.max(1, Math.min(...values.filter((value) => value > 0))),
      Math.max(...values),
    );
    const yOf = (value) =>
      bottom - (Math.log10(Math.max(value, low) / low) / Math.log10(high / low)) * (bottom - MARGIN.top);
    const shown = this.cursor === null ? 0.99 : this.cursor;
    const at = curves.map((points) => points.find((point) => point.quantile === shown)?.value ?? null);
    this.swatches.forEach((swatch, index) => setText(swatch.value, ns(at[index])));
    setText(this.when, `at ${CurveChart.name(shown)}`);
    if (this.svg.hasAttribute('hidden')) return;
    const names = [0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999, 0.999999].filter(
      (quantile) => nines(quantile) <= most + 0.001,
    );
    const xTicks = names
      .filter((quantile) => this.size().width > 480 || quantile !== 0.5)
      .map((quantile) => [quantile, quantile === 0 ? 'min' : CurveChart.name(quantile)]);
    const drawn = curves.map((points, index) =>
      svg('path', {
        class: `line ${this.options.lines[index].style}`,
        d:
          points.length === 0
            ? ''
            : `M${points.map(({ quantile, value }) => `${this.xOf(quantile).toFixed(1)},${yOf(value).toFixed(1)}`).join('L')}`,
      }),
    );
    const maxima = this.data.curves
      .map((curve, index) =>
        curve && curve.count > 0
          ? { y: yOf(curve.max_ns), label: 'max', style: this.options.lines[index].style }
          : null,
      )
      .filter(Boolean);
    const diamonds = maxima.map(({ y, style }) =>
      svg('path', { class: `diamond ${style}`, d: `M${right - 4},${y}l4,-4l4,4l-4,4z` }),
    );
    this.svg.replaceChildren(
      ...this.axes(ticks, yOf, xTicks, this.xOf, ns),
      ...drawn,
      ...diamonds,
      ...this.ends(maxima.map((max) => ({ ...max }))),
      ...this.marks(at, yOf),
    );
  }

  static name(quantile) {
    return `${Number((quantile * 100).toFixed(4))}%`;
  }

  asTable() {
    const curves = this.data.curves.map((curve) => this.known(curve));
    const value = (points, quantile) => points.find((point) => point.quantile === quantile)?.value;
    const rows = this.data.quantiles.map((quantile) => [
      quantile === 0 ? 'min' : CurveChart.name(quantile),
      ...curves.map((points) => ns(value(points, quantile))),
    ]);
    const summary = [
      ['max', ...this.data.curves.map((curve) => ns(curve?.max_ns))],
      ['mean', ...this.data.curves.map((curve) => ns(curve?.mean_ns))],
      ['values', ...this.data.curves.map((curve) => count(curve?.count))],
    ];
    return table(this.title, ['Quantile', ...this.options.lines.map((line) => line.label)], [...rows, ...summary]);
  }
}
