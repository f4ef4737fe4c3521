// The sections of the page. Owns: the choice of figures, their places and their labels. Must not: ask the service.
// Each section is built once and then updated with each new view: {answer, rows: [{t, figures, latencies}],
// shown: the rows of the range, from, to, column(row, name)}.

/** Number of seconds over which rates are averaged, because a stream comes in bursts, a slot at a time. */
const RATE_ROWS = 5;

/** Returns the mean of up to `most` rows that end with row `at`; null if row `at` has no value. */
function meanOf(rows, at, most, value) {
  if (at < 0 || value(rows[at]) === null) return null;
  const values = rows.slice(Math.max(0, at + 1 - most), at + 1).map(value);
  const known = values.filter((one) => one !== null);
  return known.reduce((total, one) => total + one, 0) / known.length;
}

/** Sources of latencies that serve clients, as opposed to the ingest. */
const LOOKUP_SOURCES = ['shm', 'rpc'];
const sourceRank = (source) => (LOOKUP_SOURCES.includes(source) ? 0 : 1);

const mean = (view, name) => meanOf(view.rows, view.rows.length - 1, RATE_ROWS, (row) => view.column(row, name));

const sum = (one, two) => (one === null || two === null ? null : one + two);

/** A figure with its name above and a note below; if it has a share, also a bar. */
class Tile {
  constructor(name, label) {
    this.value = el('dd', { class: 'value' });
    this.more = el('dd', { class: 'more' });
    this.bar = svg('rect', { class: 'bar-used', height: 4, width: 0 });
    this.meter = svg(
      'svg',
      { class: 'meter', viewBox: '0 0 100 4', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      svg('rect', { class: 'bar-all', height: 4, width: 100 }),
      this.bar,
    );
    this.meter.toggleAttribute('hidden', true);
    this.node = el('div', { class: 'tile', 'data-name': name }, el('dt', {}, label), this.value, this.more, this.meter);
  }

  set(value, more, share = null, warn = false) {
    setText(this.value, value);
    setText(this.more, more);
    this.node.classList.toggle('warn', warn);
    this.meter.toggleAttribute('hidden', share === null);
    if (share !== null) this.bar.setAttribute('width', String(Math.min(100, Math.max(0.5, share * 100))));
  }
}

function buildNow(host) {
  const labels = {
    lookups: 'Lookups',
    read: 'Lookup p99, in the engine',
    clients: 'Clients',
    lag: 'Lag',
    slot: 'Applied slot',
    changes: 'Changes',
    commit: 'Commit p99',
    queue: 'Queue to ingest-apply',
    memory: 'Memory',
    disk: 'Disk free',
  };
  const tiles = Object.fromEntries(Object.entries(labels).map(([name, label]) => [name, new Tile(name, label)]));
  host.append(el('dl', { class: 'tiles' }, ...Object.values(tiles).map((tile) => tile.node)));
  const rate = (value) => (value === null ? NONE : `${short(Math.round(value))} /s`);
  return (view) => {
    const { answer } = view;
    const behind =
      answer.lag_slots === null
        ? 'no slot from the stream yet'
        : `${plural(answer.lag_slots, 'slot', 'slots')} behind ${count(answer.newest_slot)}`;
    tiles.slot.set(count(answer.applied_slot), behind);
    const moved =
      answer.applied_unix_ms === null
        ? 'no slot since the start'
        : `last slot ${duration(answer.now_unix_ms - answer.applied_unix_ms)} ago`;
    tiles.lag.set(millis(answer.lag_ms), moved);
    const queue = answer.queue_batches / answer.queue_batches_max;
    tiles.queue.set(
      percent(queue * 100),
      `${answer.queue_batches} of ${answer.queue_batches_max} batches`,
      queue,
      queue >= ATTENTION.queueShare,
    );
    const [writes, deletes] = [mean(view, 'writes_per_s'), mean(view, 'deletes_per_s')];
    tiles.changes.set(rate(sum(writes, deletes)), `of ${rate(mean(view, 'events_per_s'))} events`);
    tiles.lookups.set(
      rate(mean(view, 'lookups_per_s')),
      `${count(answer.counters.lookups_refused)} requests refused so far`,
    );
    const { grpc, shm } = answer.connections;
    tiles.clients.set(count(grpc + shm), `${count(shm)} on shared memory, ${count(answer.subscribers.length)} follow`);
    const slowest = (ops, sources) =>
      answer.latency.series
        .filter((series) => ops.includes(series.op) && sources.includes(series.source) && series.window)
        .map((series) => ({ ...series, p99: quantile(answer, series.window, 0.99) }))
        .sort((one, two) => two.p99 - one.p99)[0];
    const read = slowest(['read_negative', 'read_positive', 'get_many'], LOOKUP_SOURCES);
    tiles.read.set(ns(read?.p99), read ? `${read.op}, ${read.source}, last 10 s` : 'no lookups in the last 10 s');
    const commit = slowest(['commit'], ['ingest']);
    tiles.commit.set(
      ns(commit?.p99),
      commit ? `${plural(commit.window.count, 'commit', 'commits')} in the last 10 s` : 'no commits in the last 10 s',
    );
    const { used, anon, cap } = memory(answer);
    const share = used === null ? null : used / cap;
    const { state, missing_bytes: missing, left_bytes: left } = answer.warm_up;
    const warmth = state === 'under_way' && missing > 0 ? `, warm-up at ${percent((1 - left / missing) * 100)}` : '';
    tiles.memory.set(
      bytes(used),
      share === null ? 'not known' : `${percent(share * 100)} of ${bytes(cap)}${warmth}`,
      share,
      anon > ATTENTION.memoryShare * cap,
    );
    const { space, store_bytes: store } = answer.disk;
    const free = space ? space.free_bytes / space.total_bytes : null;
    const low = free !== null && free < ATTENTION.freeShare;
    tiles.disk.set(bytes(space?.free_bytes), `the store takes ${bytes(store)}`, free, low);
  };
}

/** Returns the value of a distribution at one of the quantiles in the answer. */
const quantile = (answer, curve, at) => curve?.values_ns[answer.latency.quantiles.indexOf(at)] ?? null;

/** Adds details that few readers need, folded away under one line. */
function fold(host, summary, ...children) {
  host.append(el('details', {}, el('summary', {}, summary), ...children));
}

/** Adds a grid of names and figures; returns a function that sets the figures. */
function facts(host, labels) {
  const cells = labels.map((label) => ({ label, value: el('dd', {}) }));
  host.append(
    el('dl', { class: 'facts' }, ...cells.map((cell) => el('div', {}, el('dt', {}, cell.label), cell.value))),
  );
  return (values) => values.forEach((value, at) => setText(cells[at].value, value));
}

/** A chart of columns over the page's range; with `mean`, each point is the mean of that many seconds. */
function columnsChart(title, options, columns) {
  const chart = new TimeChart(title, { none: 'Nothing was recorded in this range.', mean: 1, ...options });
  const value = (view, row, name) =>
    typeof name === 'function' ? name((column) => view.column(row, column)) : view.column(row, name);
  const update = (view) => {
    const first = view.rows.length - view.shown.length;
    const points = view.shown.map((row, at) => ({
      t: row.t,
      values: columns.map((name) =>
        meanOf(view.rows, first + at, chart.options.mean, (some) => value(view, some, name)),
      ),
      shade: view.column(row, 'ready') === 0,
    }));
    chart.draw({ points, from: view.from, to: view.to });
  };
  return { node: chart.node, update };
}

function buildStream(host) {
  const perSecond = (value) => (value === null ? NONE : short(value < 10 ? value : Math.round(value)));
  const changes = (of) => sum(of('writes_per_s'), of('deletes_per_s'));
  const charts = [
    columnsChart(
      `Per second, mean of ${RATE_ROWS} s`,
      {
        mean: RATE_ROWS,
        lines: [
          { label: 'lookups', style: 's0' },
          { label: 'changes', style: 's1' },
          { label: 'events', style: 's2' },
          { label: 'updates', style: 's3' },
        ],
        scale: 'log',
        format: perSecond,
      },
      ['lookups_per_s', changes, 'events_per_s', 'updates_per_s'],
    ),
    columnsChart(
      'Lag: age of the newest applied slot',
      {
        lines: [{ label: 'lag', style: 's0' }],
        scale: 'log',
        format: (value) => (value === 0 ? '0' : millis(value)),
        // In one unit: the axis has no room for two.
        tick: (value) => (value === 0 ? '0' : value < 1000 ? `${value} ms` : `${value / 1000} s`),
        none: 'No slot was applied in this range.',
      },
      ['lag_ms'],
    ),
    columnsChart(
      'Lag: slots behind the newest',
      {
        lines: [{ label: 'slots', style: 's0' }],
        scale: 'linear',
        base: 10,
        least: 4,
        format: perSecond,
        none: 'The stream sent no slot in this range.',
      },
      ['lag_slots'],
    ),
  ];
  host.append(
    el('div', { class: 'charts three' }, ...charts.map((chart) => chart.node)),
    el(
      'p',
      { class: 'note' },
      'Shaded: not ready. An event is an account update of a whole slot; a change is an event that wrote or deleted a key.',
    ),
  );
  const counters = el('div', {});
  fold(host, 'Counters since the start', counters);
  const set = facts(counters, [
    'Connected',
    'Connects',
    'Updates received',
    'Malformed',
    'Repeated by a replay',
    'Slots applied',
    'Slots dead',
    'Slots repeated',
    'Events applied',
    'Written',
    'Deleted',
    'Commits',
    'Lookups',
    'Lookups refused',
    'Checkpoint seq',
    'Pairs',
  ]);
  return (view) => {
    charts.forEach((chart) => chart.update(view));
    const { answer } = view;
    const c = answer.counters;
    const link = `${answer.connected ? 'yes' : 'no'}, ${duration(answer.now_unix_ms - answer.connected_since_unix_ms)}`;
    const counts = [
      c.connects,
      c.updates_received,
      c.updates_malformed,
      c.updates_duplicate,
      c.slots_applied,
      c.slots_dead,
      c.slots_duplicate,
      c.events_applied,
      c.events_written,
      c.events_deleted,
      c.commits,
      c.lookups,
      c.lookups_refused,
      answer.checkpoint_seq,
      answer.pairs_estimate,
    ];
    set([link, ...counts.map(count)]);
  };
}

/** Radio buttons that look like tabs, because they bring arrow keys and screen reader support. */
class Choice {
  constructor(name, legend, chosen) {
    this.name = name;
    this.chosen = null;
    this.node = el('fieldset', { class: 'choice' }, el('legend', { class: 'vh' }, legend));
    this.node.addEventListener('change', (event) => {
      this.chosen = event.target.value;
      this.picked = true;
      chosen();
    });
  }

  /** Offers `names`. Keeps the reader's choice if it is among them, otherwise takes the first. */
  offer(names) {
    const key = names.join();
    if (!this.picked || !names.includes(this.chosen)) [this.chosen = null] = names;
    if (key !== this.key) {
      this.key = key;
      const radio = (name) =>
        el(
          'label',
          {},
          el('input', { type: 'radio', name: this.name, value: name, checked: name === this.chosen }),
          el('span', {}, name),
        );
      this.node.replaceChildren(this.node.firstChild, ...names.map(radio));
    }
    return this.chosen;
  }
}

/** Operations in the order of the choice: lookups before the operations of the ingest. */
const OPS = ['read_positive', 'read_negative', 'get_many', 'commit', 'write'];

function buildLatency(host) {
  let last = null;
  const redraw = () => last && update(last);
  const [op, source] = [new Choice('op', 'Operation', redraw), new Choice('source', 'Source of the operation', redraw)];
  const overTime = new TimeChart('Percentiles, second by second', {
    lines: [
      { label: 'p50', style: 's0' },
      { label: 'p99', style: 's1' },
      { label: 'p99.9', style: 's2 under' },
      { label: 'max', style: 's3 under' },
    ],
    scale: 'log',
    format: ns,
    none: 'No such operations in this range.',
  });
  const curves = new CurveChart('Distribution', {
    lines: [
      { label: 'last 10 s', style: 's1' },
      { label: 'since the start', style: 's0 dashed' },
    ],
    none: 'No such operations since the start.',
  });
  const all = el('div', { class: 'scroll', tabindex: '0', role: 'group', 'aria-label': 'All operations' });
  const note = el('p', { class: 'note' });
  host.append(
    el('div', { class: 'choices' }, op.node, source.node),
    el('div', { class: 'charts two' }, overTime.node, curves.node),
    all,
    note,
  );

  function update(view) {
    last = view;
    const { latency } = view.answer;
    const others = latency.series
      .map((series) => series.op)
      .filter((name, at, names) => !OPS.includes(name) && names.indexOf(name) === at);
    const chosenOp = op.offer([...OPS, ...others]);
    const sources = latency.series
      .filter((series) => series.op === chosenOp)
      .map((series) => series.source)
      .sort((one, two) => sourceRank(one) - sourceRank(two) || one.localeCompare(two));
    const chosen = source.offer(sources);
    const at = latency.series.findIndex((series) => series.op === chosenOp && series.source === chosen);
    const points = view.shown.map((row) => ({
      t: row.t,
      values: (row.latencies.get(at) || [0, null, null, null, null]).slice(1),
      shade: view.column(row, 'ready') === 0,
    }));
    overTime.draw({ points, from: view.from, to: view.to });
    const series = latency.series[at];
    curves.draw({ quantiles: latency.quantiles, curves: [series?.window ?? null, series?.total ?? null] });
    all.replaceChildren(allOperations(view.answer));
    setText(
      note,
      `Measured around each call of the engine; ${latency.instrument_ns} ns of every value are the clock's own. ${chosenOp === 'commit' ? 'A commit is a whole batch. ' : ''}In a second with few values p99 and p99.9 are the largest of them; in the distribution a percentile is drawn only where there are enough values.`,
    );
  }
  return update;
}

function allOperations(answer) {
  const { latency } = answer;
  const [from, to] = latency.window_unix_ms || [0, 0];
  const five = (curve) => [
    ns(quantile(answer, curve, 0.5)),
    ns(quantile(answer, curve, 0.99)),
    ns(quantile(answer, curve, 0.999)),
    ns(curve?.max_ns),
  ];
  const rank = (series) => [...OPS, series.op].indexOf(series.op);
  const rows = [...latency.series]
    .sort((one, two) => rank(one) - rank(two) || sourceRank(one.source) - sourceRank(two.source))
    .map((series) => [
      `${series.op}, ${series.source}`,
      series.window && to > from ? `${short(Math.round((series.window.count * 1000) / (to - from)))} /s` : NONE,
      ...five(series.window),
      count(series.total.count),
      ...five(series.total),
    ]);
  const built = table(
    'All operations',
    ['Operation, source', 'rate', 'p50', 'p99', 'p99.9', 'max', 'count', 'p50', 'p99', 'p99.9', 'max'],
    rows,
  );
  const spans = el(
    'tr',
    {},
    el('td', {}),
    el('th', { colspan: 5, scope: 'colgroup' }, 'last 10 s'),
    el('th', { colspan: 5, scope: 'colgroup' }, 'since the start'),
  );
  built.tHead.prepend(spans);
  return built;
}

function buildStorage(host) {
  let cap = null;
  const rest = (of) =>
    of('charged_bytes') === null ? null : Math.max(0, of('charged_bytes') - of('anon_bytes') - of('page_cache_bytes'));
  const anon = (of) => of('anon_bytes') ?? of('rss_anon_bytes');
  const memoryChart = columnsChart(
    'Memory',
    {
      lines: [
        { label: 'anonymous', short: 'anon', style: 's0' },
        { label: 'page cache', short: 'cache', style: 's1' },
        { label: 'kernel and other', short: 'kernel', style: 's2' },
      ],
      scale: 'stack',
      base: 1024,
      format: bytes,
      ceiling: () => cap,
    },
    [anon, 'page_cache_bytes', rest],
  );
  const diskChart = columnsChart(
    'Disk',
    {
      lines: [{ label: 'store', style: 's0' }],
      scale: 'linear',
      base: 1024,
      format: bytes,
    },
    ['store_bytes'],
  );
  host.append(el('div', { class: 'charts two' }, memoryChart.node, diskChart.node));
  const set = facts(host, [
    'Charged',
    'Cap',
    'Anonymous',
    'Page cache',
    'This process, anonymous',
    'This process, mapped files',
    'Store',
    'Per pair',
    'Free',
    'Size of the file system',
  ]);
  const from = el('p', { class: 'note' });
  host.append(from);
  return (view) => {
    const { answer } = view;
    const { group, rss, cap_from: file } = answer.memory;
    const { space, store_bytes: store } = answer.disk;
    cap = answer.memory.cap_bytes;
    memoryChart.update(view);
    diskChart.update(view);
    set([
      bytes(group?.charged_bytes),
      bytes(cap),
      bytes(group?.anon_bytes),
      bytes(group?.page_cache_bytes),
      bytes(rss?.anon_bytes),
      bytes(rss?.file_bytes),
      bytes(store),
      answer.pairs_estimate > 0 ? `${digits(store / answer.pairs_estimate)} B` : NONE,
      bytes(space?.free_bytes),
      bytes(space?.total_bytes),
    ]);
    const by =
      file === 'machine' ? "The cap is the machine's memory: no cgroup sets a limit." : `The cap is that of ${file}.`;
    const charged = group
      ? 'All memory charged to its cgroup counts, also that of other processes in it; the kernel takes clean page cache back under pressure.'
      : 'No cgroup accounts for this process: its own resident set is shown.';
    setText(from, `${by} ${charged}`);
  };
}

function buildEngine(host) {
  const body = el('div', { class: 'details' });
  fold(
    host,
    'Inside the engine',
    body,
    el(
      'p',
      { class: 'note' },
      "The engine's own figures, read about once a second while there are commits; the change is over the last 10 s.",
    ),
  );
  return (view) => {
    const rows = view.answer.details.map(([name, value, perS]) => {
      const { label, format, ratio } = detail(name);
      const change = perS === null || perS === 0 || ratio ? NONE : `${perS > 0 ? '+' : '−'}${format(Math.abs(perS))} /s`;
      return el(
        'tr',
        {},
        el('th', { scope: 'row', title: `solkv_engine_detail{name="${name}"}` }, label),
        el('td', {}, format(value)),
        el('td', {}, change),
      );
    });
    const half = Math.ceil(rows.length / 2);
    const part = (caption, some) => {
      const built = table(caption, ['Figure', 'Now', 'Change'], []);
      built.tBodies[0].append(...some);
      return el('div', { class: 'scroll' }, built);
    };
    body.replaceChildren(
      ...(rows.length === 0
        ? [el('p', { class: 'empty' }, 'The engine gives no figures of its own.')]
        : [
            part('Figures of the engine', rows.slice(0, half)),
            part('Figures of the engine, continued', rows.slice(half)),
          ]),
    );
  };
}

/** The providers of the stream, where there are several. */
function buildProviders(host) {
  const body = el('div', { class: 'scroll' });
  host.append(body);
  return ({ answer }) => {
    host.toggleAttribute('hidden', answer.providers.length < 2);
    const rows = answer.providers.map((one) => [
      one.name,
      one.condition,
      count(one.lag_slots),
      count(one.slots_first),
      count(one.slots_differing),
      count(one.errors),
      one.last_error ?? NONE,
    ]);
    const heads = ['Provider', 'Condition', 'Slots behind', 'Slots first', 'Slots differing', 'Errors', 'Last error'];
    body.replaceChildren(table('Providers', heads, rows));
  };
}

function buildFeed(host) {
  const body = el('div', { class: 'scroll' });
  host.append(body);
  return ({ answer }) => {
    if (answer.subscribers.length === 0) {
      body.replaceChildren(el('p', { class: 'empty' }, 'Nobody follows the feed.'));
      return;
    }
    const rows = [...answer.subscribers]
      .sort((one, two) => two.lag_seq - one.lag_seq)
      .map((one) => [
        String(one.id),
        one.transport,
        one.peer,
        count(one.seq),
        count(one.lag_seq),
        duration(answer.now_unix_ms - one.connected_unix_ms),
      ]);
    body.replaceChildren(
      table('Subscribers', ['Id', 'Transport', 'Peer', 'Last seq sent', 'Changes behind', 'Connected for'], rows),
    );
  };
}
