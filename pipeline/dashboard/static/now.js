// The view Now: the verdict, who is throttled, who is near a bound, what happened last; or the same of a time in the past.

import { h, show } from './dom.js';
import { CAUSES, LEVELS, TYPES, amount, clientHref, clock, count, instant, millis, nameOf, ownerText, pair, percent, rate, sensorName, sentence, span, times, when } from './format.js';
import { ask, giveUp, loadSoon } from './net.js';
import { EVERY_MS, asked, isOver, rangeBar, stamp } from './range.js';

let place = null;

export const title = () => 'Now';

export function open(main, parameters, context) {
  close();
  place = { main, context, parameters, range: parameters.get('range') || '', asked: 0, over: new AbortController() };
  place.isRange = ['range', 'since', 'until'].some((name) => parameters.get(name));
  if (place.isRange) load();
}

export function close() {
  if (place) giveUp(place);
  place = null;
}

export function state(summary) {
  if (!place || !summary.totals) return;
  if (!place.isRange) render(summary);
  else if (!isOver(place.parameters)) loadSoon(place, EVERY_MS[place.range] || 5_000, load);
}

async function load() {
  const mine = place;
  if (!mine) return;
  mine.asked = Date.now();
  try {
    const found = await ask('summary', asked(mine.parameters, mine.range), mine.over.signal);
    if (mine !== place) return;
    fix(found);
    render(found);
  } catch (error) {
    if (mine === place) mine.context.failed(error);
  }
}

/** A time of day becomes a date in the address, so that a link shows the same tomorrow. */
function fix(found) {
  const { parameters, context } = place;
  for (const [name, ms] of [['since', found.since_ms], ['until', found.until_ms]]) {
    if (/^\d\d:\d\d/.test(parameters.get(name) || '')) parameters.set(name, stamp(ms));
  }
  context.replace(`/?${parameters}`);
}

function render(summary) {
  show(place.main, heading(summary), throttled(summary), tiles(summary), summary.held ? held(summary) : null,
    h('div', { class: 'two', 'data-key': 'two' }, talkers(summary), recent(summary)));
  place.context.ready();
}

function heading(summary) {
  const { verdict, is_past: isPast, at_ms: at } = summary;
  return h('section', { class: 'heading', 'data-key': 'heading' },
    h('div', { class: 'says' }, h('h1', { class: `verdict ${verdict.kind}`, 'data-testid': 'verdict' }, sentence(verdict.text)),
      isPast ? h('p', { class: 'quiet', 'data-testid': 'at' }, `As it was at ${instant(at)}${summary.source === 'usage' ? '' : '; rates are means of the minute before'}.`) : null),
    rangeBar(place.parameters, place.range, 'Live', (parameters) => place.context.go(`/${String(parameters) ? `?${parameters}` : ''}`)));
}

function tiles({ totals, seconds, quotas }) {
  const isHeld = totals.throttled;
  const byType = Object.entries(totals.throttled_by_type).map(([type, number]) => `${number} ${TYPES[type]}`).join(', ');
  return h('section', { class: 'tiles', 'aria-label': 'Totals', 'data-key': 'tiles' },
    tile('throttled', 'Throttled', count(isHeld), byType || 'no client', isHeld ? 'warn' : ''),
    tile('near', 'Near their bound', count(totals.near_bound), totals.over_shadow_bound ? `80 % or more; ${totals.over_shadow_bound} over a shadow quota` : '80 % or more of it', totals.near_bound ? 'near' : ''),
    tile('clients', 'Active clients', count(totals.active_clients), `${count(totals.requests_per_second)} requests/s`),
    tile('produced', 'Produced', amount(totals.produced_bytes_per_second, '/s'), spark(seconds, 1, 'produced')),
    tile('fetched', 'Fetched', amount(totals.fetched_bytes_per_second, '/s'), spark(seconds, 2, 'fetched')),
    tile('quotas', 'Quotas', quotas.version === undefined ? '–' : `v${quotas.version}`, quotas.rows === undefined ? '' : `${count(quotas.rows)} rows, ${quotas.mode === 'shadow' ? 'shadow: none enforced' : 'enforced'}`));
}

function tile(name, label, value, below, kind = '') {
  return h('div', { class: `tile ${kind}`, 'data-testid': `tile-${name}`, 'data-key': name },
    h('div', { class: 'label' }, label), h('div', { class: 'value', 'data-testid': `value-${name}` }, value), h('div', { class: 'below' }, below));
}

const SPARK_SECONDS = 180;

/** A line of the last minutes; without axes, because the number stands above it. Before the first usage there is none. */
function spark(seconds, place, what) {
  if (seconds.length < 2) return '';
  const most = Math.max(...seconds.map((second) => second[place]), 1), end = seconds.at(-1)[0];
  const x = (second) => (100 - (end - second[0]) / (SPARK_SECONDS - 1) * 100).toFixed(2);
  const points = seconds.map((second) => `${x(second)},${(23 - second[place] / most * 21).toFixed(2)}`);
  return h('svg', { class: 'spark', viewBox: '0 0 100 24', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${what} in the last ${SPARK_SECONDS / 60} minutes` },
    h('path', { class: 'area', d: `M${x(seconds[0])},24L${points.join('L')}L100,24Z` }), h('polyline', { points: points.join(' ') }));
}

function throttled(summary) {
  const { throttled: rows, totals } = summary;
  if (!rows.length) return null;
  const more = totals.throttled - rows.length;
  return h('section', { class: 'card loud', 'aria-labelledby': 'h-throttled', 'data-testid': 'throttled', 'data-key': 'throttled' },
    h('header', {}, h('h2', { id: 'h-throttled' }, summary.is_past ? 'Throttled then' : 'Throttled now'), more > 0 ? h('span', { class: 'quiet' }, `the first ${rows.length} of ${count(totals.throttled)}`) : null),
    h('div', { class: 'grid-head', 'aria-hidden': 'true' }, ...['Client', 'Over', 'Level', 'For', 'How much longer'].map((text) => h('span', {}, text))),
    h('ul', { class: 'rows' }, rows.map((row) => heldRow(row, summary.is_past ? summary.at_ms : null))));
}

/** `at` is the instant of a view in the past, in which nothing counts down. */
function heldRow(row, at) {
  const [observed, bound] = pair(row.quota_type, row.observed, row.bound);
  const isPaying = row.bound !== null && row.observed <= row.bound;
  const counting = (name, ms) => (at === null ? { [`data-${name}`]: ms } : {});
  return h('li', { class: 'held', 'data-key': `${row.broker_id}\u0000${row.user}\u0000${row.client_id}`, 'data-testid': 'throttled-row' },
    h('div', { class: 'who' }, h('a', { href: clientHref(row.user, row.client_id), 'data-nav': true, 'data-testid': 'client-link' }, nameOf(row.user, row.client_id)),
      h('small', {}, ownerText(row.owner), row.broker_id ? ` · broker ${row.broker_id}` : '')),
    h('div', { class: 'over' }, h('span', { class: 'chip' }, TYPES[row.quota_type]),
      h('span', { class: 'num', title: `O ${rate(row.quota_type, row.observed)}, T ${rate(row.quota_type, row.bound)}` }, h('b', {}, observed), bound ? ` of ${bound}` : ''),
      isPaying ? h('small', {}, 'pays back its debt') : null, row.most_used > 1 ? h('small', {}, `${times(row.most_used)} its bound${row.most_used * row.bound > row.observed * 1.05 ? ' at most' : ''}`) : null),
    h('div', { class: 'level' }, h('span', { class: 'sr' }, 'Level '), h('b', {}, row.level || '–'), row.level ? h('small', {}, LEVELS[row.level]) : null),
    h('div', { class: 'since', title: `since ${instant(row.since_ms)}` }, h('span', { class: 'sr' }, 'For '), h('span', { class: 'num', ...counting('since', row.since_ms) }, at === null ? '' : span(at - row.since_ms)), h('small', {}, `since ${clock(row.since_ms)}`)),
    h('div', { class: 'left' }, h('span', { class: 'sr' }, 'How much longer: '), h('span', { class: 'num count', 'data-testid': 'countdown', ...counting('until', row.throttled_until_ms) }, at === null ? '' : span(row.throttled_until_ms - at)),
      row.owed_until_ms > row.throttled_until_ms + 250 ? h('small', {}, 'then ', span(row.owed_until_ms - row.throttled_until_ms), ' still owed') : h('small', {}, row.records > 1 ? `renewed, record ${row.records}` : 'first record'),
      at === null ? h('i', { class: 'meter', 'aria-hidden': 'true', 'data-from': row.since_ms, 'data-to': row.owed_until_ms }) : null));
}

function held({ held: found, since_ms: since, until_ms: until, now_ms: now }) {
  return h('section', { class: 'card', 'aria-labelledby': 'h-held', 'data-testid': 'held', 'data-key': 'held' },
    h('header', {}, h('h2', { id: 'h-held' }, 'Held in this range'), h('span', { class: 'quiet' }, `${when(since, now)} to ${when(until, now)} UTC`)),
    h('p', { class: 'lead' }, found.text),
    found.rows.length ? h('ol', { class: 'log sums' }, found.rows.slice(0, 20).map((row) => h('li', { 'data-key': `${row.user}\u0000${row.client_id}` },
      h('a', { href: clientHref(row.user, row.client_id, { since: stamp(since), until: stamp(until) }), 'data-nav': true }, nameOf(row.user, row.client_id)),
      h('span', { class: 'num' }, span(row.held_ms)), h('small', {}, `${count(row.throttles)} throttle${row.throttles === 1 ? '' : 's'}`), h('small', { class: 'num' }, `last until ${when(row.last_ms, now)}`)))) : null);
}

/** The colours of a bar, in words. */
export const barLegend = () => h('p', { class: 'legend bars-legend', 'data-key': 'bars-legend' },
  ...[['within', 'within its bound'], ['near', '80 % or more'], ['over', 'over it'], ['shadow', 'shadow: not enforced'], ['edge', 'the bound'], ['break', 'more than 150 %']].map(([kind, text]) => h('span', { class: `k swatch ${kind}` }, text)));

const SCALE = 1.5;

/** A bar that ends at 150 % of the bound; one that would be longer breaks. */
export function bar(used, standing) {
  const isBroken = used > SCALE;
  return h('div', { class: `track ${standing}${isBroken ? ' broken' : ''}`, role: 'img', 'aria-label': `${percent(used)} of the bound` },
    h('i', { style: { width: `${(Math.min(used / SCALE, 1) * 100).toFixed(1)}%` } }), h('em', { style: { left: `${(100 / SCALE).toFixed(2)}%` } }), isBroken ? h('s', {}) : null);
}

function talkers({ talkers: rows }) {
  return h('section', { class: 'card', 'aria-labelledby': 'h-talkers', 'data-testid': 'talkers' },
    h('header', {}, h('h2', { id: 'h-talkers' }, 'Nearest to their bound'), h('span', { class: 'quiet' }, 'rate over the window, of the bound')),
    rows.length ? [h('ul', { class: 'rows' }, rows.slice(0, 12).map(talkerRow)), barLegend()] : h('p', { class: 'empty' }, 'No usage under any quota.'));
}

function talkerRow(row) {
  const shared = sensorName(row);
  const [observed, bound] = pair(row.quota_type, row.observed, row.bound);
  return h('li', { class: 'talker', 'data-key': [row.quota_type, row.mode, row.level, row.broker_id, row.sensor_user, row.sensor_client_id].join('\u0000'), 'data-testid': 'talker-row' },
    h('div', { class: 'who' }, h('a', { href: clientHref(row.user, row.client_id), 'data-nav': true }, nameOf(row.user, row.client_id)),
      row.clients > 1 ? h('small', { title: shared }, `and ${row.clients - 1} more, together`) : null,
      row.mode === 'shadow' ? h('span', { class: 'chip ghost' }, 'shadow') : null, row.throttled ? h('span', { class: 'chip warn' }, 'throttled') : null),
    h('span', { class: 'quiet kind' }, TYPES[row.quota_type]), h('span', { class: 'num rate' }, h('b', {}, observed), ` of ${bound}`), h('span', { class: `num pct ${row.standing}` }, percent(row.used)),
    bar(row.used, row.standing));
}

function recent({ recent: rows, now_ms: now }) {
  return h('section', { class: 'card', 'aria-labelledby': 'h-recent', 'data-testid': 'recent' },
    h('header', {}, h('h2', { id: 'h-recent' }, 'Latest records, by client'), h('span', { class: 'quiet' }, 'of the throttle topic, UTC')),
    rows.length ? h('ol', { class: 'log' }, rows.slice(0, 18).map((row) => logRow(row, now))) : h('p', { class: 'empty' }, 'No record yet.'));
}

function logRow(row, now) {
  return h('li', { 'data-key': `${row.broker_id}\u0000${row.user}\u0000${row.client_id}`, 'data-testid': 'record-row' },
    h('time', { class: 'num' }, when(row.at_ms, now)), h('span', { class: `verb ${row.verb}` }, row.verb),
    h('a', { href: clientHref(row.user, row.client_id, { decision_id: row.decision_id }), 'data-nav': true }, nameOf(row.user, row.client_id)),
    h('small', {}, row.verb === 'release' ? CAUSES[row.cause] || row.cause : `for ${millis(row.throttle_time_ms)}`),
    h('small', { class: 'num rate' }, row.records > 1 ? `${count(row.records)} records since ${when(row.first_ms, now)}` : ''));
}
