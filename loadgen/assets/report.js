// A report: its texts and tables as elements, and its lines in the dashboard's charts. Owns: the page. Must not: turn
// the text of a record into markup, or fetch anything.

const STATS = ['avg', 'p50', 'p99', 'max'];
const KINDS = {
  caps: 'Latency against the memory cap',
  size: 'Latency against size',
  time: 'Latency over time',
  nines: 'Percentiles, by nines',
};

const report = JSON.parse(document.getElementById('report-data').textContent);
const byId = (id) => document.getElementById(id);
/** The charts of the page, each with the function that returns its data. */
const charts = [];
let stat = 'p99';

// Four colours, solid and dashed, so that eight engines differ and none by its colour alone.
const look = (engine) => `s${engine % 4}${Math.floor(engine / 4) % 2 === 1 ? ' dashed' : ''}`;
const named = (engine) => {
  const label = report.engines[engine];
  return { label, short: label.length > 9 ? `${label.slice(0, 8)}…` : label, style: look(engine) };
};

/** Lines over seconds, pairs or memory caps. Where a line shows medians, each has the range of its repeats. */
class LineChart extends TimeChart {
  constructor(chart) {
    super(chart.title, {
      lines: chart.lines.map(({ engine }) => named(engine)),
      format: ns,
      axis: chart.x,
      gap: Infinity,
      ceiling: () => chart.device_ns,
      capName: 'device',
      none: 'No value.',
    });
    this.chart = chart;
  }

  place(t) {
    const { kind, ticks } = this.chart;
    return kind === 'caps' ? ticks[t] : kind === 'size' ? count(t) : `${digits(t)} s`;
  }

  xTicks() {
    const { kind, ticks } = this.chart;
    const { from, to } = this.data;
    return kind === 'caps' ? ticks.map((text, at) => [at, text]) : niceTicks(to - from, 1).map((at) => [at, short(at)]);
  }

  lines(points, yOf) {
    const whisker = (range, index, x) =>
      svg('path', {
        class: `whisker ${this.options.lines[index].style}`,
        d: `M${x},${yOf(range[0])}V${yOf(range[1])}M${x - 4},${yOf(range[0])}h8M${x - 4},${yOf(range[1])}h8`,
      });
    const whiskers = points.flatMap(({ t, ranges }) =>
      ranges.map((range, index) => (range ? whisker(range, index, this.xOf(t)) : null)),
    );
    return [...super.lines(points, yOf), ...whiskers.filter(Boolean)];
  }

  asTable() {
    const cell = (value, range) => (range ? `${ns(value)} (${ns(range[0])} – ${ns(range[1])})` : ns(value));
    const rows = this.data.points.map(({ t, values, ranges }) => [
      this.place(t),
      ...values.map((value, index) => cell(value, ranges[index])),
    ]);
    return table(this.title, [this.chart.x, ...this.options.lines.map(({ label }) => label)], rows);
  }

  /** Returns the points of the chosen figure. Its scale is logarithmic if the values span nearly a decade. */
  pointsOf() {
    const { kind, lines, ticks } = this.chart;
    const round = (x) => (kind === 'time' ? Math.round(x * 10) / 10 : x);
    const places = lines.map(({ x }) => new Map(x.map((place, at) => [round(place), at])));
    const all = [...new Set(places.flatMap((known) => [...known.keys()]))].sort((one, two) => one - two);
    const points = all.map((t) => ({
      t,
      values: lines.map(({ y }, index) => y[stat][places[index].get(t)] ?? null),
      ranges: lines.map(({ ranges }, index) => ranges[stat]?.[places[index].get(t)] ?? null),
    }));
    const values = points.flatMap((point) => point.values).filter((value) => value > 0);
    this.options.scale = Math.max(...values) >= 8 * Math.min(...values) ? 'log' : 'linear';
    return kind === 'caps'
      ? { points, from: -0.25, to: ticks.length - 0.75 }
      : { points, from: 0, to: Math.max(...all, 1e-3) };
  }
}

function lineChart(chart) {
  const drawn = new LineChart(chart);
  charts.push([drawn, () => drawn.pointsOf()]);
  return drawn.node;
}

function curveChart({ title, curves }) {
  const quantiles = [...new Set(curves.flatMap(({ curve }) => curve.map(([share]) => share)))]
    .filter((share) => share < 1)
    .sort((one, two) => one - two);
  const of = ({ count, mean_ns, max_ns, curve }) => {
    const known = new Map(curve);
    return { count, mean_ns, max_ns, values_ns: quantiles.map((share) => known.get(share) ?? null) };
  };
  const drawn = new CurveChart(title, { lines: curves.map(({ engine }) => named(engine)), none: 'No value.' });
  charts.push([drawn, () => ({ quantiles, curves: curves.map(of) })]);
  return drawn.node;
}

/** Draws the charts that have a place on the screen: those in a closed fold have none. */
function show() {
  charts.filter(([chart]) => chart.node.clientWidth > 0).forEach(([chart, data]) => chart.draw(data()));
}

function figures({ caption, head, rows, words }) {
  const cell = ({ main, detail, ahead }) =>
    el('td', { class: ahead === null ? null : 'best' }, main, detail === '' ? null : el('small', {}, detail));
  // A long table repeats its engines under every title.
  const again = (at) => (at > 0 ? head.slice(1).map((name) => el('td', { 'aria-hidden': 'true' }, name)) : []);
  const row = ({ title, figures: named }, at) =>
    title === undefined
      ? el('tr', {}, el('th', { scope: 'row' }, named[0]), ...named[1].map(cell))
      : el('tr', { class: 'title' }, el('th', { scope: 'rowgroup', colspan: at > 0 ? 1 : head.length }, title), ...again(at));
  const heads = el('tr', {}, ...head.map((name) => el('th', { scope: 'col' }, name)));
  const body = el('tbody', {}, ...rows.map(row));
  const looks = words ? 'figures words' : 'figures';
  return [
    el('p', { class: 'caption' }, caption),
    el('div', { class: 'scroll', tabindex: '0' }, el('table', { class: looks }, el('thead', {}, heads), body)),
  ];
}

function fold(kind, head, inside) {
  const node = el('details', { class: kind }, el('summary', {}, head), ...inside);
  node.addEventListener('toggle', show);
  return [node];
}

const list = (lines) => el('ul', {}, ...lines.map((line) => el('li', {}, line)));
const BLOCKS = {
  text: (text) => [el('p', {}, text)],
  list: (lines) => [list(lines)],
  folded: ([head, lines]) => fold('folded', head, [list(lines)]),
  fold: ([head, blocks]) => fold('fold', head, blocks.flatMap(block)),
  code: (text) => [el('pre', { tabindex: '0' }, el('code', {}, text))],
  table: figures,
  charts: (all) => [
    el('h4', {}, KINDS[all[0].kind]),
    el('div', { class: 'charts' }, ...all.map((one) => (one.kind === 'nines' ? curveChart(one) : lineChart(one)))),
  ],
};

function block(one) {
  const [[kind, content]] = Object.entries(one);
  return BLOCKS[kind](content);
}

function controls() {
  const choice = el('select', {}, ...STATS.map((name) => el('option', { value: name, selected: name === stat }, name)));
  choice.addEventListener('change', () => {
    stat = choice.value;
    show();
  });
  const root = document.documentElement;
  const theme = el('button', { type: 'button' });
  const isDark = () => (root.dataset.theme || (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : '')) === 'dark';
  const label = () => setText(theme, isDark() ? 'Light' : 'Dark');
  theme.addEventListener('click', () => {
    root.dataset.theme = isDark() ? 'light' : 'dark';
    label();
  });
  const wanted = new URLSearchParams(location.search).get('theme');
  if (wanted === 'dark' || wanted === 'light') root.dataset.theme = wanted;
  label();
  const unfold = el('button', { type: 'button' }, 'Unfold all');
  unfold.addEventListener('click', () => {
    const folds = [...document.querySelectorAll('details.fold')];
    const open = folds.some((one) => !one.open);
    folds.forEach((one) => (one.open = open));
    setText(unfold, open ? 'Fold all' : 'Unfold all');
  });
  return [charts.length > 0 ? el('label', {}, 'Lines show ', choice) : null, unfold, theme];
}

function build() {
  document.title = report.title;
  setText(byId('title'), report.title);
  setText(byId('lead'), report.lead);
  for (const { id, title, blocks } of report.sections) {
    byId('sections').append(el('li', {}, el('a', { href: `#${id}` }, title)));
    const head = el('h2', { id: `${id}-title` }, title);
    byId('main').append(el('section', { id, 'aria-labelledby': `${id}-title` }, head, ...blocks.flatMap(block)));
  }
  fill(byId('controls'), {}, controls());
  show();
  let width = window.innerWidth;
  window.addEventListener('resize', () => {
    if (window.innerWidth !== width) show();
    width = window.innerWidth;
  });
}

build();
