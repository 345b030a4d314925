// The range that a view shows: one of some lengths up to now, or from and to, also in the past. The address carries it.

import { h } from './dom.js';

export const RANGES = [['15m', '15 min'], ['1h', '1 h'], ['6h', '6 h'], ['24h', '24 h'], ['7d', '7 d']];
export const EVERY_MS = { '15m': 2_000, '1h': 5_000, '6h': 15_000, '24h': 30_000, '7d': 60_000 };
const SPAN = ['since', 'until'];

/** Epoch milliseconds as the address has them: 2026-01-31T03:12:05. */
export const stamp = (ms) => new Date(ms).toISOString().slice(0, 19);

/** What the API is asked for. */
export function asked(parameters, range) {
  const until = parameters.get('until');
  return { since: parameters.get('since') || (until ? null : range), until };
}

/** Whether the range ends in the past, so that nothing in it changes any more. */
export const isOver = (parameters) => Boolean(parameters.get('until'));

/** The parameters with another range: {range}, or {since, until}. */
export function withRange(parameters, next) {
  const found = new URLSearchParams(parameters);
  for (const name of ['range', ...SPAN]) found.delete(name);
  for (const [name, value] of Object.entries(next)) if (value) found.set(name, value);
  return found;
}

/** Buttons and fields; `go` gets the new parameters. `live` is the text of a button for no range, null without one. */
export function rangeBar(parameters, range, live, go) {
  const isSpan = SPAN.some((name) => parameters.get(name));
  const button = (value, text) => h('button', { type: 'button', 'aria-pressed': String(!isSpan && value === range), 'data-testid': `range-${value || 'live'}`, on: { click: () => go(withRange(parameters, { range: value })) } }, text);
  const text = (name) => {
    const value = parameters.get(name) || '';
    return /^\d{10,15}$/.test(value) ? stamp(Number(value)).replace('T', ' ') : value.replace('T', ' ');
  };
  // A new field for each range: the fields keep what is typed while the view is drawn anew.
  const field = (name, label) => h('label', { 'data-key': `${name}-${text(name)}` }, label, h('input', { type: 'text', name, value: text(name), size: 17, autocomplete: 'off', placeholder: name === 'until' ? '03:12' : '03:00', 'data-testid': name }));
  const submit = (event) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget);
    const [since, until] = SPAN.map((name) => given.get(name).trim().replace(/^(\d{4}-\d\d-\d\d) /, '$1T'));
    go(withRange(parameters, since || until ? { since, until } : { range: live ? '' : '15m' }));
  };
  return h('div', { class: 'range', 'data-key': 'range' },
    h('div', { class: 'segments', role: 'group', 'aria-label': 'Range' }, live ? button('', live) : null, RANGES.map(([value, label]) => button(value, label))),
    h('form', { class: 'span', on: { submit } }, field('since', 'from'), field('until', 'to'), h('span', { class: 'quiet' }, 'UTC'), h('button', { type: 'submit', class: 'button' }, 'Show')));
}
