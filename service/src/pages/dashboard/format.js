// Figures as text with their units, and helpers that create elements. Owns: the format of figures. Must not: turn text
// into markup.
'use strict';

const NONE = '–';

/** Formats a number with about three significant digits, never with an exponent. */
function digits(value) {
  const size = Math.abs(value);
  return value.toFixed(size >= 99.95 || value === 0 ? 0 : size >= 9.995 ? 1 : 2);
}

function scaled(value, base, units) {
  let at = 0;
  while (Math.abs(value) >= base * 0.9995 && at < units.length - 1) {
    value /= base;
    at += 1;
  }
  // Whole numbers without a prefix have no fraction to show.
  return `${at === 0 && Number.isInteger(value) ? value : digits(value)}${units[at]}`;
}

const given = (format) => (value) =>
  value === null || value === undefined || Number.isNaN(value) ? NONE : format(value);

const ns = given((value) => scaled(value, 1000, [' ns', ' µs', ' ms', ' s']));
const bytes = given((value) => scaled(value, 1024, [' B', ' KiB', ' MiB', ' GiB', ' TiB']));
const short = given((value) => scaled(value, 1000, ['', 'k', 'M', 'G', 'T']));
const count = given((value) => value.toLocaleString('en-GB'));
const percent = given((value) => `${value < 10 ? value.toFixed(1) : value.toFixed(0)} %`);
const millis = given((value) =>
  value < 1000 ? `${Math.round(value)} ms` : value < 60_000 ? `${digits(value / 1000)} s` : duration(value),
);

/** Formats a duration in milliseconds by its two largest units. */
function duration(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  const parts = [
    ['d', 86400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ];
  const first = parts.findIndex(([, size]) => seconds >= size);
  if (first < 0) return '0 s';
  let left = seconds;
  return parts
    .slice(first, first + 2)
    .map(([unit, size]) => {
      const whole = Math.floor(left / size);
      left -= whole * size;
      return whole > 0 ? `${whole} ${unit}` : '';
    })
    .join(' ')
    .trim();
}

const two = (number) => String(number).padStart(2, '0');

/** Formats a time in the reader's time zone; adds the date if that is not today's. */
function clock(unixMs, seconds = true) {
  const time = new Date(unixMs);
  const text = `${two(time.getHours())}:${two(time.getMinutes())}${seconds ? `:${two(time.getSeconds())}` : ''}`;
  if (time.toDateString() === new Date().toDateString()) return text;
  return seconds ? `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${text}` : text;
}

/** Returns the label and the format of an engine's figure, from the unit at the end of its name. */
function detail(name) {
  // A ratio of counts since the start, whose rate of change says nothing.
  const amplification = '_amplification_percent';
  if (name.endsWith(amplification))
    return {
      label: name.slice(0, -'_percent'.length).replaceAll('_', ' '),
      format: (value) => `${digits(value / 100)} ×`,
      ratio: true,
    };
  const units = [
    ['_bytes_per_s', (value) => `${bytes(value)}/s`],
    ['_bytes', bytes],
    ['_us', (value) => ns(value * 1000)],
    ['_percent', (value) => `${count(value)} %`],
    ['_per_million', (value) => `${count(value)} ppm`],
    ['_count', count],
  ];
  const [unit, format] = units.find(([end]) => name.endsWith(end)) || ['', count];
  const ratio = ['_percent', '_per_million'].includes(unit);
  return { label: name.slice(0, name.length - unit.length).replaceAll('_', ' '), format, ratio };
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);

/** Sets a node's text only if it differs, because a screen reader would otherwise read it again. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Returns a table of text cells; `heads` names the columns, and the first cell of a row names the row. */
function table(caption, heads, rows) {
  const head = el('tr', {}, ...heads.map((text) => el('th', { scope: 'col' }, text)));
  const body = rows.map(([first, ...rest]) =>
    el('tr', {}, el('th', { scope: 'row' }, first), ...rest.map((text) => el('td', {}, text))),
  );
  return el('table', {}, el('caption', { class: 'vh' }, caption), el('thead', {}, head), el('tbody', {}, ...body));
}
