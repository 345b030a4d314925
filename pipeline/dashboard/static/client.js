// The view Client: one client in the last 15 minutes, and why it is throttled.

import { h, show } from './dom.js';
import { CAUSES, LEVELS, TYPES, clientHref, clock, count, instant, isByte, millis, nameOf, pair, percent, rate, span, when } from './format.js';
import { ask, giveUp, loadSoon } from './net.js';
import { draw, library } from './chart.js';

const MINUTE_MS = 60_000;
const EVERY_MS = 2_000;
const LIST_EVERY_MS = 5_000;
let place = null;

export const title = (parameters) => (parameters.get('user') ? nameOf(parameters.get('user'), parameters.get('client_id') || '') : 'Client');

export function open(main, parameters, context) {
  close();
  place = { main, context, parameters, charts: new Map(), story: null, storyId: null, document: null, asked: 0, seq: -1, over: new AbortController(), cursor: null };
  if (!parameters.get('user')) {
    list(parameters.get('search') || '');
    return;
  }
  load();
  explain(parameters.get('decision_id'));
}

export function close() {
  if (!place) return;
  giveUp(place);
  for (const { chart, watcher } of place.charts.values()) {
    watcher.disconnect();
    chart.destroy();
  }
  place = null;
}

export function state(head) {
  if (!place) return;
  if (!place.parameters.get('user')) {
    loadSoon(place, LIST_EVERY_MS, () => list(place.search));
    return;
  }
  place.head = head;
  if (head.seq === place.seq) return;
  loadSoon(place, EVERY_MS, load);
}

matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => place && place.document && redraw());

async function load() {
  const mine = place;
  if (!mine) return;
  mine.asked = Date.now();
  try {
    const found = await ask('client', who(mine), mine.over.signal);
    if (mine !== place) return;
    mine.document = found;
    mine.seq = found.seq;
    const newest = found.records.length ? found.records[0].at_ms : 0;
    if (mine.newest !== undefined && !mine.storyId && (found.throttled.length || mine.newest !== newest)) explain('');
    mine.newest = newest;
    render();
    mine.context.ready();
  } catch (error) {
    if (mine === place) mine.context.failed(error);
  }
}

const who = ({ parameters }) => ({ user: parameters.get('user'), client_id: parameters.get('client_id') || '' });

async function list(search) {
  const mine = place;
  mine.asked = Date.now();
  mine.search = search;
  try {
    const found = await ask('clients', { search, limit: 50 }, mine.over.signal);
    if (mine !== place || search !== mine.search) return;
    show(mine.main, h('section', { class: 'title', 'data-key': 'title' }, h('div', { class: 'names' }, h('h1', {}, 'Which client?'), h('p', { class: 'quiet' }, 'Clients of the last minutes, and those with a quota of their own.')), finder(found)),
      h('section', { class: 'card', 'data-key': 'clients', 'data-testid': 'clients', 'aria-label': 'Clients' },
        found.clients.length ? h('ul', { class: 'log sums clients' }, found.clients.map((one) => h('li', { 'data-key': `${one.user}\u0000${one.client_id}`, 'data-testid': 'client-row' },
          h('a', { href: clientHref(one.user, one.client_id), 'data-nav': true }, nameOf(one.user, one.client_id)), one.throttled ? h('span', { class: 'chip warn' }, 'throttled') : h('span', {}),
          h('small', { class: 'num' }, one.used === null ? '' : `${percent(one.used)} of its bound`), h('small', {}, one.seen_ms ? `seen ${when(one.seen_ms, found.now_ms)}` : 'not lately'))))
          : h('p', { class: 'empty' }, search ? `No client of the last minutes is named like ${search}. Older ones are found by their full name: press Show.` : 'No client was seen yet.'),
        found.total > found.clients.length ? h('p', { class: 'empty' }, `${count(found.total - found.clients.length)} more; type a part of the name.`) : null));
    mine.context.ready();
  } catch (error) {
    if (mine === place) mine.context.failed(error);
  }
}

async function explain(decisionId) {
  const mine = place;
  const wanted = decisionId ? { decision_id: decisionId } : who(mine);
  mine.storyId = decisionId || '';
  try {
    const story = await ask('explain', wanted, mine.over.signal);
    if (mine === place) mine.story = story;
  } catch (error) {
    if (mine === place) mine.story = { failure: error.message };
  }
  if (mine === place && mine.document) render();
}

function pick(decisionId) {
  const parameters = new URLSearchParams(place.parameters);
  parameters.set('decision_id', decisionId);
  place.parameters = parameters;
  place.context.replace(`/client?${parameters}`);
  explain(decisionId).then(() => {
    const panel = document.getElementById('explain');
    if (panel) panel.scrollIntoView({ block: 'nearest' });
  });
}

/** The search field with completion. In the list (`found`) it narrows what is listed. */
function finder(found) {
  const mine = place;
  const names = h('datalist', { id: 'names' }, (found ? found.clients : mine.names || []).slice(0, 20).map((one) => h('option', { value: nameOf(one.user, one.client_id) })));
  const typed = async (event) => {
    const search = event.target.value;
    clearTimeout(mine.typing);
    if (found) {
      mine.typing = setTimeout(() => list(search), 150);
      return;
    }
    mine.typing = setTimeout(async () => {
      const answer = await ask('clients', { search, limit: 20 }, mine.over.signal).catch(() => null);
      if (!answer || mine !== place) return;
      mine.names = answer.clients;
      render();
    }, 150);
  };
  const field = h('input', { type: 'search', id: 'who', 'data-search': true, list: 'names', placeholder: 'user, or user / client-id', autocomplete: 'off', 'data-testid': 'find-client', 'aria-label': 'User, or user / client-id', on: { input: typed } });
  const submit = (event) => {
    event.preventDefault();
    const [user, ...rest] = event.currentTarget.querySelector('input').value.split('/');
    const client = rest.join('/').trim();
    if (user.trim()) place.context.go(clientHref(user.trim(), client === '(no client-id)' ? '' : client));
  };
  return h('form', { class: 'find', role: 'search', 'data-key': 'finder', on: { submit } }, field, names, h('button', { type: 'submit', class: 'button' }, 'Show'));
}

function render() {
  const found = place.document;
  const types = found.charts;
  const unseen = found.seen_ms === null ? neverSeen(found) : null;
  if (unseen && !found.throttled.length && !found.records.length) {
    show(place.main, heading(found), unseen, h('div', { class: 'two', 'data-key': 'two' }, levels(found), brokers(found)));
    return;
  }
  show(place.main,
    heading(found),
    unseen, // also a name that was never used is held with its user
    story(),
    h('section', { class: 'card charts', 'data-key': 'charts', 'aria-label': 'Rate over time' },
      types.length ? types.map((type) => figure(found, type)) : h('p', { class: 'empty', 'data-key': 'none' }, 'Neither usage nor a bound in the last 15 minutes.'),
      types.length ? legend(found) : null),
    h('div', { class: 'two', 'data-key': 'two' }, records(found), h('div', { class: 'stack', 'data-key': 'right' }, levels(found), brokers(found))));
  redraw();
}

function neverSeen(found) {
  return h('section', { class: 'card pad', 'data-key': 'never', 'data-testid': 'never-seen' },
    h('p', {}, `No usage of ${nameOf(found.user, found.client_id)} is kept in the table usage.`),
    found.alike.length ? h('p', {}, 'Did you mean ', found.alike.map((one, at) => [at ? ', ' : '', h('a', { href: clientHref(one.user, one.client_id), 'data-nav': true }, nameOf(one.user, one.client_id))]), '?') : null,
    h('p', {}, h('a', { href: '/client', 'data-nav': true }, 'All clients of the last minutes')));
}

function heading(found) {
  const held = found.throttled[0];
  return h('section', { class: 'title', 'data-key': 'title' },
    h('div', { class: 'names' },
      h('h1', { 'data-testid': 'client-name' }, h('span', {}, found.user), h('span', { class: 'slash' }, ' / '), h('span', {}, found.client_id === '' ? '(no client-id)' : found.client_id)),
      h('p', { class: 'quiet' }, standing(found))),
    held ? h('div', { class: 'holding', 'data-testid': 'holding' }, h('span', { class: 'chip warn' }, 'throttled'), h('span', { class: 'num count big', 'data-until': held.throttled_until_ms }, ''),
      h('small', {}, `${held.client_id === null ? `with all client-ids of ${found.user} ` : ''}by ${TYPES[held.quota_type]}, since ${clock(held.since_ms)}; ${owedText(found, held)}`)) : h('div', { class: 'holding free', 'data-testid': 'holding' }, h('span', { class: 'chip' }, found.held_by_brokers ? 'not throttled by kquota' : 'not throttled')),
    found.held_by_brokers ? h('p', { class: 'quiet', 'data-testid': 'held-by-brokers' }, found.held_by_brokers) : null,
    found.effective.filter((one) => one.sharing).map((one) => h('p', { class: 'quiet', 'data-key': `tenant-${one.quota_type}`, 'data-testid': 'tenant' }, h('span', { class: 'chip' }, TYPES[one.quota_type]), ' ', `${one.sharing}.`)),
    found.large_requests.map((text, at) => h('p', { class: 'quiet', 'data-key': `large-${at}`, 'data-testid': 'large-request' }, text)),
    h('div', { class: 'tools' }, finder(null)));
}

function owedText(found, held) {
  const owes = found.owed.find((one) => one.quota_type === held.quota_type);
  if (!owes) return '';
  const debt = owes.tokens !== null && owes.tokens < 0 ? `, a debt of ${isByte(held.quota_type) ? rate(held.quota_type, -owes.tokens).replace('/s', '') : `${(-owes.tokens).toFixed(1)} %·s`}` : '';
  return `owed ${span(owes.owed_ms)} then${debt}`;
}

function standing(found) {
  const named = found.effective.filter((one) => one.level !== null);
  if (!named.length) return 'no quota applies to it';
  return named.map((one) => `${TYPES[one.quota_type]} ${one.bound === null ? (one.mode === 'exempt' ? 'exempt' : 'without bound') : rate(one.quota_type, one.bound)}${one.mode === 'shadow' ? ' (shadow)' : ''} by level ${one.level}${one.shared ? `, shared with ${count(one.shared)} more` : ''}`).join(' · ');
}

function figure(found, type) {
  const one = found.effective.find((row) => row.quota_type === type);
  const [observed, bound] = pair(type, one.observed, one.bound);
  return h('figure', { 'data-key': `figure-${type}`, 'data-testid': `chart-${type}` },
    h('figcaption', {}, h('h2', {}, TYPES[type]), h('span', { class: 'num' }, h('b', {}, observed), bound ? ` of ${bound}` : ''), one.mode === 'shadow' ? h('span', { class: 'chip ghost' }, 'shadow: not enforced') : null,
      h('span', { class: 'num quiet push', 'data-read': type }, '')),
    h('div', { class: 'plot', 'data-keep': 'plot', 'data-plot': type, 'data-since-ms': String(beginOf(found)), role: 'img', 'aria-label': `${TYPES[type]} of ${nameOf(found.user, found.client_id)} from ${clock(beginOf(found))} to ${clock(found.until_ms)} UTC: now ${observed}${bound ? ` of ${bound}` : ''}` }));
}

function legend(found) {
  const isShared = Object.values(found.series).some((one) => one.own);
  return h('p', { class: 'legend', 'data-key': 'legend' },
    h('span', { class: 'k rate' }, `rate over ${span(found.window_ms)}${isShared ? ', of all that share its quota' : ''}`), isShared ? h('span', { class: 'k own' }, 'this client alone') : null,
    h('span', { class: 'k lim' }, 'bound now'), h('span', { class: 'k band' }, 'throttled'), h('span', { class: 'k dot' }, 'decision (hollow: asks for no hold)'),
    h('span', { class: 'quiet' }, 'UTC, the last 15 minutes. What was before: kquota throttles list --since 1d, or the SQL views client_usage_by_minute and throttle_log.'));
}

/** Where the charts begin: before the first micro-batch there is nothing to see, so a young job fills its charts. */
function beginOf(found) {
  const first = found.known_since_ms;
  return first === null ? found.since_ms : Math.max(found.since_ms, Math.min(first, found.until_ms - MINUTE_MS) - found.step_ms);
}

async function redraw() {
  const mine = place;
  const uPlot = await library();
  if (mine !== place) return;
  const found = mine.document;
  const live = new Set();
  for (const node of mine.main.querySelectorAll('[data-plot]')) {
    const type = node.dataset.plot;
    live.add(type);
    const old = mine.charts.get(type);
    if (old) {
      old.watcher.disconnect();
      old.chart.destroy();
    }
    const facts = {
      type, at_ms: found.at_ms, since_ms: beginOf(found), until_ms: found.until_ms,
      observed: found.series[type].observed, own: found.series[type].own,
      bound: found.effective.find((one) => one.quota_type === type).bound,
      bands: found.bands, decisions: found.decisions.filter((one) => one.quota_type === type),
      height: innerWidth < 760 ? 180 : 210,
      onCursor: (at) => read(type, at),
    };
    const chart = draw(uPlot, node, facts);
    const watcher = new ResizeObserver(() => node.clientWidth !== chart.width && chart.setSize({ width: node.clientWidth, height: facts.height }));
    watcher.observe(node);
    mine.charts.set(type, { chart, watcher });
  }
  for (const [type, { chart, watcher }] of [...mine.charts]) {
    if (live.has(type)) continue;
    watcher.disconnect();
    chart.destroy();
    mine.charts.delete(type);
  }
  mine.main.dataset.drawn = String(live.size);
}

function read(type, at) {
  const node = document.querySelector(`[data-read="${type}"]`);
  const found = place && place.document;
  if (!node || !found) return;
  if (at === null || at === undefined || found.at_ms[at] === undefined) {
    node.textContent = '';
    return;
  }
  const value = found.series[type].observed[at];
  node.textContent = `${clock(found.at_ms[at])}  ${value === null ? 'no data' : rate(type, value)}`;
}

function story() {
  const found = place.story;
  const body = !found ? h('p', { class: 'empty' }, 'Loading')
    : found.failure ? h('p', { class: 'empty' }, found.failure)
      : found.decision_id === null ? h('p', { class: 'empty' }, 'No decision is kept: it was not over a quota.')
      : [h('dl', { class: 'facts' }, found.facts.map(([name, text]) => h('div', {}, h('dt', {}, name), h('dd', {}, text)))),
        h('div', { class: 'published' }, found.published.slice(0, 1).map((line) => h('p', { class: 'quiet' }, line)), found.published.length > 1 ? h('ol', { tabindex: '0', 'aria-label': 'What was published' }, found.published.slice(1).map((line) => h('li', {}, line))) : null, found.now ? h('p', { 'data-testid': 'story-now' }, found.now) : null)];
  return h('section', { class: 'card', id: 'explain', 'data-key': 'story', 'data-testid': 'explain', 'aria-labelledby': 'h-explain' },
    h('header', {}, h('h2', { id: 'h-explain' }, place.storyId ? 'Why: this decision' : place.document.throttled.length ? 'Why now' : 'Why the last time'), found && found.decision_id ? h('span', { class: 'quiet' }, `${found.decision_id} · ${instant(found.evaluated_at_ms)}`) : null), body);
}

function records(found) {
  const rows = found.records.slice(0, 14);
  return h('section', { class: 'card', 'data-key': 'records', 'aria-labelledby': 'h-records', 'data-testid': 'records' },
    h('header', {}, h('h2', { id: 'h-records' }, 'What was published'), h('span', { class: 'quiet' }, 'the newest records of the last 15 minutes')),
    rows.length ? h('ol', { class: 'log' }, rows.map((row) => h('li', { 'data-key': `${row.at_ms}-${row.verb}-${row.decision_id}` },
      h('time', { class: 'num' }, clock(row.at_ms, true)), h('span', { class: `verb ${row.verb}` }, row.verb),
      h('button', { type: 'button', class: 'link', on: { click: () => pick(row.decision_id) } }, `decision ${row.decision_id.slice(0, 8)}`),
      h('small', {}, row.verb === 'release' ? CAUSES[row.cause] || row.cause : `for ${millis(row.throttle_time_ms)}`), h('small', { class: 'num rate' }, pair(row.quota_type, row.observed, row.bound).filter(Boolean).join(' of '))))) : h('p', { class: 'empty' }, 'Nothing in the last 15 minutes.'));
}

function levels(found) {
  return h('section', { class: 'card', 'data-key': 'levels', 'aria-labelledby': 'h-levels', 'data-testid': 'levels' },
    h('header', {}, h('h2', { id: 'h-levels' }, 'The eight levels'), h('span', { class: 'quiet' }, 'the most specific quota wins, per type')),
    h('ol', { class: 'levels' }, found.levels.map((row) => h('li', { class: row.matches.length ? 'on' : row.bounds ? '' : 'off', 'data-key': String(row.level) },
      h('b', { class: 'num' }, row.level), h('span', {}, LEVELS[row.level]),
      h('span', { class: 'set' }, row.bounds === null ? h('small', {}, 'no row') : row.mode === 'exempt' ? 'exempt' : Object.entries(row.bounds).map(([type, bound]) => h('span', { class: `chip ${row.matches.includes(type) ? 'blue' : ''}` }, `${TYPES[type]} ${rate(type, bound)}${row.mode === 'shadow' ? ', shadow' : ''}${row.matches.includes(type) ? ' ✓' : ''}`))))))); 
}

function brokers(found) {
  return h('section', { class: 'card', 'data-key': 'brokers', 'aria-labelledby': 'h-brokers', 'data-testid': 'on-brokers' },
    h('header', {}, h('h2', { id: 'h-brokers' }, 'What the brokers enforce')),
    found.on_brokers.length ? h('ul', { class: 'plain' }, found.on_brokers.map((one) => h('li', {}, h('span', { class: 'chip' }, TYPES[one.quota_type]), ` ${one.text}`)))
      : h('p', { class: 'empty' }, 'Nothing that kquota wrote: throttles are obeyed by the client or its gate.'));
}
