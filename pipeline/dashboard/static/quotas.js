// The view Quotas: every row with how near it is to its bound, and who changed what.

import { h, show } from './dom.js';
import { LEVELS, TYPES, clientHref, count, instant, pair, percent, rate, when } from './format.js';
import { edit } from './edit.js';
import { ask, giveUp, loadSoon } from './net.js';

const EVERY_MS = 3_000;
let place = null;

export const title = () => 'Quotas';

export function open(main, parameters, context) {
  close();
  place = { main, context, parameters, search: parameters.get('search') || '', asked: 0, version: null, history: null, found: null, over: new AbortController() };
  load();
}

export function close() {
  if (place) giveUp(place);
  place = null;
}

export function state() {
  if (!place) return;
  loadSoon(place, EVERY_MS, load);
}

async function load() {
  const mine = place;
  if (!mine) return;
  mine.asked = Date.now();
  const { search } = mine;
  try {
    const found = await ask('quotas', { search, limit: 200 }, mine.over.signal);
    if (mine !== place || search !== mine.search) return;
    mine.found = found;
    if (mine.version !== found.quotas.newest_version) {
      mine.version = found.quotas.newest_version;
      mine.history = (await ask('quotas/history', { limit: 30 }, mine.over.signal)).versions;
      if (mine !== place) return;
    }
    render();
    mine.context.ready();
  } catch (error) {
    if (mine === place) mine.context.failed(error);
  }
}

function looking(event) {
  place.search = event.target.value;
  const query = place.search ? `?${new URLSearchParams({ search: place.search })}` : '';
  place.context.replace(`/quotas${query}`);
  clearTimeout(place.typing);
  place.typing = setTimeout(load, 150);
}

function render() {
  const { found } = place;
  const { quotas } = found;
  show(place.main,
    h('section', { class: 'title', 'data-key': 'title' }, h('div', { class: 'names' }, h('h1', {}, 'Quotas'),
      h('p', { class: 'quiet' }, `version ${quotas.version} in force${quotas.newest_version !== quotas.version ? `; ${quotas.newest_version} is newer and not valid` : ''} · ${count(found.all)} rows · scope ${quotas.scope} · ${quotas.mode === 'shadow' ? 'all in shadow mode: no client is throttled' : 'enforced'}`)),
    h('form', { class: 'find', role: 'search', 'data-key': 'search', on: { submit: (event) => event.preventDefault() } }, h('input', { type: 'search', 'data-search': true, placeholder: 'name, owner, note or mode', 'aria-label': 'Search quotas', value: place.search, 'data-testid': 'search', on: { input: looking } }))),
    table(found), history(found));
}

function table(found) {
  return h('section', { class: 'card', 'data-key': 'table', 'data-testid': 'quotas', 'aria-label': 'Quotas' },
    found.rows.length ? h('ul', { class: 'rows quotas' }, found.rows.map(quotaRow)) : h('p', { class: 'empty' }, place.search ? 'No quota matches.' : 'The quota table has no rows.'),
    found.total > found.rows.length ? h('p', { class: 'empty' }, `${count(found.total - found.rows.length)} more; narrow the search.`) : null);
}

function part(name, word) {
  return name === '' ? null : name === '<default>' ? h('i', { class: 'any' }, `any other ${word}`) : h('span', {}, name);
}

function quotaRow(row) {
  const user = part(row.user, 'user'), client = part(row.client_id, 'client-id');
  return h('li', { class: 'quota', 'data-key': `${row.user}\u0000${row.client_id}`, 'data-testid': 'quota-row' },
    h('div', { class: 'who' }, h('div', { class: 'entity' }, user || h('small', {}, 'client-id'), user && client ? h('span', { class: 'slash' }, ' / ') : ' ', client), h('small', {}, `level ${row.level}: ${LEVELS[row.level]}`)),
    h('div', { class: 'whose' }, row.mode === 'enforce' ? null : h('span', { class: `chip ${row.mode === 'shadow' ? 'ghost' : 'blue'}` }, row.mode), h('span', {}, row.owner || h('span', { class: 'quiet' }, 'no owner')), row.note ? h('small', {}, row.note) : null,
      h('button', { type: 'button', class: 'link', 'data-testid': 'edit-row', 'aria-label': `Try a different limit for ${row.entity}`, on: { click: () => change(row.user, row.client_id) } }, 'Try a different limit')),
    h('div', { class: 'bounds' }, Object.entries(row.bounds).map(([type, one]) => bound(row, type, one)), Object.keys(row.bounds).length ? null : h('small', {}, 'no bounds')));
}

/** By its name, not by the row that was shown when the button was made: the table may be a newer version by now. */
function change(user, clientId) {
  const row = place.found.rows.find((one) => one.user === user && one.client_id === clientId);
  if (row) edit(row, place.found.version, place.found.may_write, load);
}

function bound(row, type, one) {
  const [observed, of] = pair(type, one.observed || 0, one.bound);
  const kind = row.mode === 'shadow' ? 'shadow' : one.used > 1 ? 'over' : one.used >= 0.8 ? 'near' : '';
  return h('div', { class: 'bound', 'data-key': type }, h('span', { class: 'quiet' }, TYPES[type]),
    h('span', { class: 'num' }, one.observed === null ? h('span', { class: 'quiet' }, 'unused') : one.user ? h('a', { href: clientHref(one.user, one.client_id), 'data-nav': true, title: 'the client nearest to it' }, observed) : observed, ` of ${of}`), h('span', { class: `num pct ${kind}` }, one.observed === null ? '' : percent(one.used)),
    h('div', { class: `track ${kind}`, role: 'img', 'aria-label': `${percent(one.used)} of the bound` }, h('i', { style: { width: `${Math.min(one.used / 1.5, 1) * 100}%` } }), h('em', { style: { left: '66.67%' } })));
}

function history(found) {
  const rows = place.history || [];
  return h('section', { class: 'card', 'data-key': 'history', 'data-testid': 'history', 'aria-labelledby': 'h-history' },
    h('header', {}, h('h2', { id: 'h-history' }, 'History'), h('span', { class: 'quiet' }, 'who changed what, when and why')),
    h('ol', { class: 'history' }, rows.map((one) => h('li', { 'data-key': String(one.version) },
      h('div', { class: 'ver' }, h('b', {}, `v${one.version}`), h('small', { title: instant(one.committed_at_ms) }, when(one.committed_at_ms, found.now_ms))),
      h('div', {}, h('p', {}, h('span', {}, one.actor ? `${one.actor} at ${one.host}` : `by another tool (${one.operation.toLowerCase()})`), one.reason ? h('span', { class: 'quiet' }, `: ${one.reason}`) : null),
        one.mode[0] !== one.mode[1] ? h('p', { class: 'diff' }, `mode of all ${one.mode[0]} → ${one.mode[1]}`) : null,
        h('ul', { class: 'diff' }, grouped(one.changes).map(([key, changes]) => h('li', { 'data-key': key }, h('span', { class: `sign ${changes[0].action}` }, { add: '+', remove: '−', alter: '~' }[changes[0].action]), h('span', {}, entity(changes[0])), ' ', changes.map(diff)))), one.more ? h('small', {}, `and ${one.more} more`) : null))))); 
}

function grouped(changes) {
  const found = new Map();
  for (const change of changes) {
    const key = `${change.user}\u0000${change.client_id}`;
    found.set(key, [...(found.get(key) || []), change]);
  }
  return [...found];
}

function entity({ user, client_id: client }) {
  return [user === '<default>' ? 'any other user' : user, client === '<default>' ? 'any other client-id' : client].filter(Boolean).join(' / ');
}

function diff(change) {
  const text = (value) => (value === null ? null : TYPES[change.column] ? rate(change.column, value) : String(value));
  const [before, after] = [text(change.old), text(change.new)];
  return h('span', { class: 'change' }, h('small', {}, `${TYPES[change.column] || change.column} `), before === null ? null : h('del', {}, before), before !== null && after !== null ? ' → ' : null, after === null ? null : h('ins', {}, after));
}
