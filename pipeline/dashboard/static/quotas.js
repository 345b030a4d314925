// The view Quotas: every row with how near it is to its bound, and who changed what.

import { copied, h, show } from './dom.js';
import { LEVELS, TYPES, clientHref, count, instant, pair, percent, rate, when } from './format.js';
import { ask, giveUp, loadSoon } from './net.js';
import { bar, barLegend } from './now.js';

const EVERY_MS = 3_000;
const PAGE = 50;
/** What the address may have besides the search; the first one holds without it. */
const STANDINGS = [['any', 'any'], ['over', 'over its bound'], ['near', 'near: 80 % or more'], ['unused', 'unused']];
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
  const wanted = String(mine.parameters);
  try {
    const found = await ask('quotas', { ...asked(), limit: PAGE }, mine.over.signal);
    if (mine !== place || wanted !== String(mine.parameters)) return;
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

/** The parameters of the address: the API takes the same ones. */
const asked = () => Object.fromEntries(['search', 'standing', 'offset'].map((name) => [name, place.parameters.get(name)]).filter(([, value]) => value));

function choose(name, value) {
  const { parameters } = place;
  if (name !== 'offset') parameters.delete('offset');
  if (value) parameters.set(name, value);
  else parameters.delete(name);
  place.context.replace(`/quotas${String(parameters) ? `?${parameters}` : ''}`);
}

function looking(event) {
  choose('search', event.target.value);
  clearTimeout(place.typing);
  place.typing = setTimeout(load, 150);
}

function standings() {
  const now = place.parameters.get('standing') || 'any';
  const change = (event) => {
    choose('standing', event.target.value === 'any' ? '' : event.target.value);
    load();
  };
  return h('label', {}, 'Use', h('select', { 'data-testid': 'choose-standing', on: { change } }, STANDINGS.map(([value, text]) => h('option', { value, selected: value === now }, text))));
}

function render() {
  const { found } = place;
  const { quotas } = found;
  show(place.main,
    h('section', { class: 'title', 'data-key': 'title' }, h('div', { class: 'names' }, h('h1', {}, 'Quotas'),
      h('p', { class: 'quiet' }, `version ${quotas.version} in force${quotas.newest_version !== quotas.version ? `; ${quotas.newest_version} is newer and not valid` : ''} · ${count(found.all)} rows · scope ${quotas.scope} · ${quotas.mode === 'shadow' ? 'all in shadow mode: no client is throttled' : 'enforced'}`)),
    h('form', { class: 'find', role: 'search', 'data-key': 'search', on: { submit: (event) => event.preventDefault() } }, h('input', { type: 'search', 'data-search': true, placeholder: 'name, owner, note or mode', 'aria-label': 'Search quotas', value: place.search, 'data-testid': 'search', on: { input: looking } })),
    h('div', { class: 'choices', 'data-key': 'choices' }, standings())),
    table(found), history(found));
}

function pages(found) {
  if (found.total <= PAGE) return null;
  const last = Math.min(found.offset + found.rows.length, found.total);
  const turn = (offset, text, id) => h('button', { type: 'button', class: 'button', 'data-testid': id, disabled: offset < 0 || offset >= found.total, on: { click: () => { choose('offset', offset ? String(offset) : ''); load(); } } }, text);
  return h('p', { class: 'pages', 'data-key': 'pages' }, turn(found.offset - PAGE, 'Before', 'page-before'), h('span', { class: 'num' }, `${count(found.offset + 1)} to ${count(last)} of ${count(found.total)}`), turn(found.offset + PAGE, 'Next', 'page-next'));
}

function table(found) {
  return h('section', { class: 'card', 'data-key': 'table', 'data-testid': 'quotas', 'aria-label': 'Quotas' },
    found.rows.length ? h('ul', { class: 'rows quotas' }, found.rows.map(quotaRow)) : h('p', { class: 'empty' }, found.all ? 'No quota matches.' : 'The quota table has no rows.'),
    found.rows.length ? barLegend() : null, pages(found));
}

function part(name, word) {
  return name === '' ? null : name === '<default>' ? h('i', { class: 'any' }, `any other ${word}`) : h('span', {}, name);
}

function quotaRow(row) {
  const user = part(row.user, 'user'), client = part(row.client_id, 'client-id');
  return h('li', { class: 'quota', 'data-key': `${row.user}\u0000${row.client_id}`, 'data-testid': 'quota-row' },
    h('div', { class: 'who' }, h('div', { class: 'entity' }, user || h('small', {}, 'client-id'), user && client ? h('span', { class: 'slash' }, ' / ') : ' ', client), h('small', {}, `level ${row.level}: ${LEVELS[row.level]}`)),
    h('div', { class: 'whose' }, row.mode === 'enforce' ? null : h('span', { class: `chip ${row.mode === 'shadow' ? 'ghost' : 'blue'}` }, row.mode), h('span', {}, row.owner || h('span', { class: 'quiet' }, 'no owner')), row.note ? h('small', {}, row.note) : null,
      commands(row)),
    h('div', { class: 'bounds' }, Object.entries(row.bounds).map(([type, one]) => bound(row, type, one)), Object.keys(row.bounds).length ? null : h('small', {}, 'no bounds')));
}

/** How to change a row, and how to try that first. What is open stays open while the row and its commands stay the same. */
function commands(row) {
  return h('details', { 'data-keep': row.command, 'data-testid': 'commands' }, h('summary', { 'aria-label': `Change the quota of ${row.entity}` }, 'Change it'),
    h('p', {}, h('small', {}, 'To change it, run this with other figures:'), copied(row.command)),
    h('p', {}, h('small', {}, 'To see first whom it would hold, write all quotas to a file, edit it, and replay usage with it:'), copied(place.found.what_if)));
}

function bound(row, type, one) {
  const [observed, of] = pair(type, one.observed || 0, one.bound);
  return h('div', { class: 'bound', 'data-key': type }, h('span', { class: 'quiet' }, TYPES[type]),
    h('span', { class: 'num' }, one.observed === null ? h('span', { class: 'quiet' }, 'unused') : one.user ? h('a', { href: clientHref(one.user, one.client_id), 'data-nav': true, title: 'the client nearest to it' }, observed) : observed, ` of ${of}`), h('span', { class: `num pct ${one.standing}` }, one.observed === null ? '' : percent(one.used)),
    bar(one.used, one.standing));
}

function history(found) {
  const rows = place.history || [];
  return h('section', { class: 'card', 'data-key': 'history', 'data-testid': 'history', 'aria-labelledby': 'h-history' },
    h('header', {}, h('h2', { id: 'h-history' }, 'History'), h('span', { class: 'quiet' }, 'who changed what, when and why')),
    h('ol', { class: 'history' }, rows.map((one) => h('li', { 'data-key': String(one.version) },
      h('div', { class: 'ver' }, h('b', {}, `v${one.version}`), h('small', { title: instant(one.committed_at_ms) }, when(one.committed_at_ms, found.now_ms))),
      h('div', {}, h('p', {}, h('span', {}, one.by), one.reason ? h('span', { class: 'quiet' }, `: ${one.reason}`) : null),
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
