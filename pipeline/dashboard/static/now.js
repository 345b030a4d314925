// The view Now: the verdict, who is throttled, who is near a bound, what happened last.

import { h, show } from './dom.js';
import { CAUSES, LEVELS, TYPES, amount, clientHref, clock, count, instant, millis, nameOf, ownerText, pair, percent, rate, sensorName, sentence, span, times, when } from './format.js';

let place = null;

export const title = () => 'Now';

export function open(main, _parameters, context) {
  place = { main, context };
}

export function close() {
  place = null;
}

export function state(summary) {
  if (!place || !summary.totals) return;
  render(summary);
}

function render(summary) {
  show(place.main, heading(summary), tenants(summary), throttled(summary), tiles(summary),
    h('div', { class: 'two', 'data-key': 'two' }, talkers(summary), recent(summary)));
  place.context.ready();
}

function heading({ verdict }) {
  return h('section', { class: 'heading', 'data-key': 'heading' }, h('h1', { class: `verdict ${verdict.kind}`, 'data-testid': 'verdict' }, sentence(verdict.text)));
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

const MOST_TENANTS = 8, MOST_MEMBERS = 6;

/** Only where there are tenants. */
function tenants({ tenants: rows }) {
  if (!rows.length) return null;
  return h('section', { class: 'card', 'aria-labelledby': 'h-tenants', 'data-testid': 'tenants', 'data-key': 'tenants' },
    h('header', {}, h('h2', { id: 'h-tenants' }, 'Tenants'), h('span', { class: 'quiet' }, 'what the members use of the bound of all of them', rows.length > MOST_TENANTS ? `; the fullest ${MOST_TENANTS}` : '')),
    h('ul', { class: 'rows' }, rows.slice(0, MOST_TENANTS).map(tenantRow)),
    h('p', { class: 'legend bars-legend' }, h('span', { class: 'k swatch within' }, 'a member, up to its own bound'), h('span', { class: 'k swatch lent' }, 'what it borrows above that'), h('span', { class: 'k swatch free' }, 'free')));
}

function tenantRow(row) {
  const [used, bound] = pair(row.quota_type, row.used, row.bound), more = row.members - Math.min(row.shown.length, MOST_MEMBERS);
  return h('li', { class: 'talker tenant', 'data-key': [row.tenant, row.quota_type, row.broker_id, row.mode].join('\u0000'), 'data-testid': 'tenant-row' },
    h('div', { class: 'who' }, h('b', {}, row.tenant), row.broker_id ? h('small', {}, `broker ${row.broker_id}`) : null,
      row.mode === 'shadow' ? h('span', { class: 'chip ghost' }, 'shadow') : null, row.is_at_bound ? h('span', { class: 'chip warn' }, 'at its bound') : null),
    h('span', { class: 'quiet kind' }, TYPES[row.quota_type]), h('span', { class: 'num rate' }, h('b', {}, used), ` of ${bound}`), h('span', { class: `num pct ${row.standing}` }, percent(row.share)),
    inside(row), h('p', { class: 'quiet', 'data-testid': 'tenant-text' }, `${row.text}.`),
    row.shown.length ? h('ul', { class: 'members' }, row.shown.slice(0, MOST_MEMBERS).map((one) => memberRow(row, one)), more > 0 ? h('li', {}, `${count(more)} more`) : null) : null);
}

/** C as a bar, each member a part of it: what it has of its own, and what it borrows. */
function inside(row) {
  const whole = Math.max(row.bound, row.used), others = row.used - row.shown.reduce((sum, one) => sum + one.observed, 0);
  const width = (part) => ({ width: `${(part / whole * 100).toFixed(2)}%` });
  return h('div', { class: 'track inside', role: 'img', 'aria-label': `${percent(row.share)} of the bound, by ${count(row.members)} members` },
    row.shown.map((one) => [h('i', { style: width(one.observed - one.borrowed) }), one.borrowed ? h('i', { class: 'lent', style: width(one.borrowed) }) : null]),
    others > 0 ? h('i', { class: 'others', style: width(others) }) : null);
}

function memberRow(row, one) {
  const [observed, own] = pair(row.quota_type, one.observed, one.own_bound);
  return h('li', {}, h('a', { href: clientHref(one.sensor_user, one.sensor_client_id || null), 'data-nav': true }, one.name), h('span', { class: 'num' }, ` ${observed} of its own ${own}`),
    one.borrowed ? h('span', { class: 'chip lent' }, `borrows ${rate(row.quota_type, one.borrowed)}`) : null, one.throttled ? h('span', { class: 'chip warn' }, 'throttled') : null);
}

function throttled(summary) {
  const { throttled: rows, totals } = summary;
  if (!rows.length) return null;
  const more = totals.throttled - rows.length;
  return h('section', { class: 'card loud', 'aria-labelledby': 'h-throttled', 'data-testid': 'throttled', 'data-key': 'throttled' },
    h('header', {}, h('h2', { id: 'h-throttled' }, 'Throttled now'), more > 0 ? h('span', { class: 'quiet' }, `the first ${rows.length} of ${count(totals.throttled)}`) : null),
    h('div', { class: 'grid-head', 'aria-hidden': 'true' }, ...['Client', 'Over', 'Level', 'For', 'How much longer'].map((text) => h('span', {}, text))),
    h('ul', { class: 'rows' }, rows.map(heldRow)));
}

/** Whom a record holds: a client, or a user for a quota type. */
const targetKey = (row) => [row.broker_id, row.user, ...(row.client_id === null ? ['*', row.quota_type] : ['', row.client_id])].join('\u0000');

function heldRow(row) {
  const [observed, bound] = pair(row.quota_type, row.observed, row.bound);
  const isPaying = row.bound !== null && row.observed <= row.bound;
  return h('li', { class: 'held', 'data-key': targetKey(row), 'data-testid': 'throttled-row' },
    h('div', { class: 'who' }, h('a', { href: clientHref(row.user, row.client_id), 'data-nav': true, 'data-testid': 'client-link' }, nameOf(row.user, row.client_id)),
      row.client_id === null ? h('small', {}, `all client-ids${row.except_client_ids.length ? `, but ${row.except_client_ids.join(', ')}` : ''}`) : null,
      h('small', {}, ownerText(row.owner), row.tenant ? ` · tenant ${row.tenant}` : '', row.broker_id ? ` · broker ${row.broker_id}` : '')),
    h('div', { class: 'over' }, h('span', { class: 'chip' }, TYPES[row.quota_type]),
      h('span', { class: 'num', title: `O ${rate(row.quota_type, row.observed)}, T ${rate(row.quota_type, row.bound)}` }, h('b', {}, observed), bound ? ` of ${bound}` : ''),
      isPaying ? h('small', {}, 'pays back its debt') : null, row.most_used > 1 ? h('small', {}, `${times(row.most_used)} its bound${row.most_used * row.bound > row.observed * 1.05 ? ' at most' : ''}`) : null),
    h('div', { class: 'level' }, h('span', { class: 'sr' }, 'Level '), h('b', {}, row.level || '–'), row.level ? h('small', {}, LEVELS[row.level]) : null),
    h('div', { class: 'since', title: `since ${instant(row.since_ms)}` }, h('span', { class: 'sr' }, 'For '), h('span', { class: 'num', 'data-since': row.since_ms }, ''), h('small', {}, `since ${clock(row.since_ms)}`)),
    h('div', { class: 'left' }, h('span', { class: 'sr' }, 'How much longer: '), h('span', { class: 'num count', 'data-testid': 'countdown', 'data-until': row.throttled_until_ms }, ''),
      row.owed_until_ms > row.throttled_until_ms + 250 ? h('small', {}, 'then ', span(row.owed_until_ms - row.throttled_until_ms), ' still owed') : h('small', {}, row.records > 1 ? `renewed, record ${row.records}` : 'first record'),
      h('i', { class: 'meter', 'aria-hidden': 'true', 'data-from': row.since_ms, 'data-to': row.owed_until_ms })));
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
      row.clients > 1 ? h('small', { title: shared }, `and ${row.clients - 1} more, together`) : null, row.tenant ? h('small', {}, `of ${row.tenant}`) : null,
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
  return h('li', { 'data-key': targetKey(row), 'data-testid': 'record-row' },
    h('time', { class: 'num' }, when(row.at_ms, now)), h('span', { class: `verb ${row.verb}` }, row.verb),
    h('a', { href: clientHref(row.user, row.client_id, { decision_id: row.decision_id }), 'data-nav': true }, nameOf(row.user, row.client_id)),
    h('small', {}, row.verb === 'release' ? CAUSES[row.cause] || row.cause : `for ${millis(row.throttle_time_ms)}`),
    h('small', { class: 'num rate' }, row.records > 1 ? `${count(row.records)} records since ${when(row.first_ms, now)}` : ''));
}
