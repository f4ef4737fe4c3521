// The page as a whole: polls once a second, keeps the history, reports when no answer comes. Owns: the poll, the theme,
// the range, greying out. Must not: show an old figure as if it were new.

const POLL_MS = 1000;
/** Longest wait for an answer, which takes milliseconds: a stopped or hanging service should be reported soon. */
const ANSWER_MS = 3000;
const RANGE_MIN_MS = 60_000;
const MARKS = { ok: '✓', warn: '!', bad: '✕', lost: '?', wait: '…' };
const ICON_COLOURS = { ok: '#1a8a4a', warn: '#c98a00', bad: '#d1242f', lost: '#777777', wait: '#777777' };

const byId = (id) => document.getElementById(id);

const store = { answer: null, rows: [], columns: new Map(), seq: 0, answeredAt: null, rangeMs: 300_000 };

/** Returns the data that every section is given. */
function view() {
  const to = store.rows.length > 0 ? store.rows[store.rows.length - 1].t : store.answer.now_unix_ms;
  // A service that started a minute ago cannot show five minutes.
  const from = to - Math.min(store.rangeMs, Math.max(RANGE_MIN_MS, to - (store.rows[0]?.t ?? to)));
  return {
    answer: store.answer,
    rows: store.rows,
    shown: store.rows.filter((row) => row.t >= from),
    from,
    to,
    column: (row, name) => row.figures[store.columns.get(name)] ?? null,
  };
}

/** Stores an answer. Returns false if it is another process's, whose history must be requested from the start. */
function take(answer) {
  const another = store.answer !== null && store.answer.start_unix_ms !== answer.start_unix_ms;
  if (another && store.seq > 0) {
    Object.assign(store, { rows: [], seq: 0, answer: null });
    return false;
  }
  const { columns, rows, samples_max: most } = answer.history;
  store.columns = new Map(columns.map((name, at) => [name, at]));
  for (const [seq, t, figures, latencies] of rows) {
    store.rows.push({ t, figures, latencies: new Map(latencies.map(([series, ...values]) => [series, values])) });
    store.seq = seq;
  }
  store.rows.splice(0, store.rows.length - most);
  store.answer = answer;
  store.answeredAt = Date.now();
  return true;
}

const sections = [];

function show() {
  if (store.answer === null) return;
  const now = view();
  const { version, engine, identity, now_unix_ms: time, start_unix_ms: start } = now.answer;
  setText(byId('where'), `${identity.host}:${identity.dir}`);
  const from = `${identity.extract} of ${identity.provider}, ${identity.commitment}, ${identity.durability}`;
  setText(byId('identity'), `${engine} · ${from} · version ${version} · up ${duration(time - start)}`);
  sections.forEach((update) => update(now));
  showState(verdict(now));
}

function showState({ level, word, headline, reason, attention }) {
  const state = byId('state');
  if (state.dataset.level !== level) {
    state.dataset.level = level;
    const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><circle cx="8" cy="8" r="8" fill="${ICON_COLOURS[level]}"/><text x="8" y="12" font-size="11" font-family="sans-serif" text-anchor="middle" fill="#fff">${MARKS[level]}</text></svg>`;
    byId('icon').href = `data:image/svg+xml,${encodeURIComponent(icon)}`;
  }
  setText(byId('mark'), MARKS[level]);
  setText(byId('headline'), headline);
  setText(byId('reason'), reason);
  const list = byId('attention');
  if (list.childElementCount !== attention.length) list.replaceChildren(...attention.map(() => el('li', {})));
  attention.forEach((text, at) => setText(list.children[at], text));
  const host = store.answer?.identity.host;
  document.title = host ? `${word} · ${host} · solkv` : `${word} · solkv`;
}

/** Shows that no answer comes: the old figures stay, greyed out, with their time. */
function showLost() {
  const since = store.answeredAt;
  document.body.classList.toggle('stale', since !== null);
  const reason =
    since === null
      ? 'No figures have arrived yet.'
      : `The last answer came at ${clock(since)}, ${duration(Date.now() - since)} ago. Everything below is as it was then.`;
  showState({ level: 'lost', word: 'No answer', headline: 'No answer from the service', reason, attention: [] });
}

async function ask() {
  const options = { cache: 'no-store', signal: AbortSignal.timeout(ANSWER_MS) };
  const response = await fetch(`dashboard.json?since=${store.seq}`, options);
  if (!response.ok) throw new Error(`status=${response.status}`);
  return response.json();
}

async function poll() {
  let answer = null;
  try {
    answer = await ask();
    if (!take(answer)) take(await ask());
  } catch {
    answer = null;
  }
  if (answer === null) {
    showLost();
  } else {
    document.body.classList.remove('stale');
    show();
  }
  setTimeout(poll, POLL_MS);
}

/** Returns an earlier choice; null if there is none or the browser stores nothing. */
function remembered(name) {
  try {
    return localStorage.getItem(`solkv.${name}`);
  } catch {
    return null;
  }
}

function remember(name, value) {
  try {
    localStorage.setItem(`solkv.${name}`, value);
  } catch {
    // The browser stores nothing: the choice lasts as long as the page.
  }
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  setText(byId('theme'), `Theme: ${theme}`);
}

function start() {
  const themes = ['auto', 'light', 'dark'];
  setTheme(themes.includes(remembered('theme')) ? remembered('theme') : 'auto');
  byId('theme').addEventListener('click', () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    setTheme(next);
    remember('theme', next);
  });
  byId('range').addEventListener('change', (event) => {
    store.rangeMs = Number(event.target.value) * 1000;
    show();
  });
  const builders = {
    now: buildNow,
    latency: buildLatency,
    stream: buildStream,
    storage: buildStorage,
    providers: buildProviders,
    feed: buildFeed,
    engine: buildEngine,
  };
  for (const [id, build] of Object.entries(builders)) sections.push(build(byId(id)));
  let width = window.innerWidth;
  window.addEventListener('resize', () => {
    if (window.innerWidth !== width) show();
    width = window.innerWidth;
  });
  poll();
}

start();
