// The view Pipeline: whether every part works, how fast, and how old what it wrote is.

import { h, show } from './dom.js';
import { clock, count, instant, millis, when } from './format.js';
import { ask, giveUp, loadSoon } from './net.js';

const EVERY_MS = 2_000;
const OLD_MS = { usage: 5_000, batches: 5_000 };
const COLUMNS = [['Batch', 'Number of the micro-batch'], ['Read at', 'When the job read its usage, UTC'], ['Events', 'Usage events in it'], ['Delay', 'How old its newest usage was when it was read'],
  ['Late', 'Events older than the windows of the rate'], ['Clamped', 'Events dated ahead, set back'], ['Ignored', 'Records without events'], ['Unreadable', 'Messages kept as dead letters'], ['Quotas', 'Version of the quota table it was decided with']];
let place = null;

export const title = () => 'Pipeline';

export function open(main, _parameters, context) {
  close();
  place = { main, context, asked: 0, over: new AbortController() };
  load();
}

export function close() {
  if (place) giveUp(place);
  place = null;
}

export function state(head) {
  if (!place) return;
  place.head = head;
  if (place.found) render(place.found);
  loadSoon(place, EVERY_MS, load);
}

async function load() {
  const mine = place;
  if (!mine) return;
  mine.asked = Date.now();
  try {
    const found = await ask('pipeline', {}, mine.over.signal);
    if (mine !== place) return;
    mine.found = found;
    render(found);
    mine.context.ready();
  } catch (error) {
    if (mine === place) mine.context.failed(error);
  }
}

function render(answer) {
  // The stream knows first how old the newest micro-batch is.
  const found = place.head && place.head.now_ms > answer.now_ms ? { ...answer, health: place.head.health, now_ms: place.head.now_ms } : answer;
  show(place.main, h('h1', { class: 'hidden' }, 'Pipeline'), tiles(found), delays(found),
    h('div', { class: 'two even', 'data-key': 'two' }, sources(found), letters(found)), batches(found));
}

const VALUES = { ms: (value) => millis(value), count: (value) => count(value), per_second: (value) => `${count(value)}/s` };

function tiles({ gauges, health, batches, purgatory, now_ms: now }) {
  const notes = {
    age: health.process ? `job: process ${health.process}` : 'job: not on this machine',
    events: `in the last ${count(batches.length)} micro-batches`,
    held: purgatory.next_end_ms ? ['next one: ', h('span', { 'data-until': purgatory.next_end_ms }, '')] : '',
    punctuality: purgatory.checks ? `half within ${millis(purgatory.lateness_p50_ms)}` : 'no release yet',
    unreadable: 'in the last hour',
  };
  return h('section', { class: 'tiles', 'aria-label': 'State' }, gauges.map((one) => {
    // The stream knows first how old the newest micro-batch is.
    const isAge = one.name === 'age' && health.last_batch_age_ms !== null;
    const standing = isAge && health.state !== 'live' ? 'bad' : one.standing;
    const value = isAge ? h('span', { 'data-since': now - health.last_batch_age_ms }, '') : one.value === null ? 'none' : VALUES[one.unit](one.value);
    return h('div', { class: `tile ${standing}`, 'data-key': one.name, 'data-testid': `tile-${one.name}`, title: one.why, tabindex: '0', role: 'group', 'aria-describedby': `why-${one.name}`, 'aria-label': one.label },
      h('div', { class: 'label' }, one.label), h('div', { class: 'value' }, value),
      h('div', { class: 'below' }, h('span', { class: 'target' }, one.target ? `${standing === 'bad' ? 'Not on target: ' : standing === 'good' ? 'On target: ' : 'Target: '}${one.target}` : 'No target: as quotas say'), notes[one.name] ? h('span', {}, notes[one.name]) : null),
      h('p', { class: 'why', id: `why-${one.name}`, role: 'tooltip' }, one.why));
  }));
}

function delays({ batches }) {
  const rows = [...batches].reverse();
  const most = Math.max(...rows.map((row) => row.lag_ms), 50);
  const width = 100 / Math.max(rows.length, 1);
  const bars = rows.map((row, place) => h('rect', { x: (place * width).toFixed(3), y: (100 - row.lag_ms / most * 100).toFixed(2), width: (width * 0.76).toFixed(3), height: (row.lag_ms / most * 100).toFixed(2) }));
  return h('section', { class: 'card', 'data-key': 'delays', 'aria-labelledby': 'h-delays', 'data-testid': 'delays' },
    h('header', {}, h('h2', { id: 'h-delays' }, 'Delay per micro-batch'), h('span', { class: 'quiet' }, `how old its newest usage was when it was read, the last ${rows.length}; the longest ${millis(most)}`)),
    rows.length ? h('div', { class: 'bars' }, h('svg', { viewBox: '0 0 100 100', preserveAspectRatio: 'none', role: 'img', 'aria-label': `Delay per micro-batch; the longest of ${rows.length} was ${millis(most)}` }, bars)) : h('p', { class: 'empty' }, 'No micro-batch yet.'));
}

function sources({ sources: rows, now_ms: now }) {
  return h('section', { class: 'card', 'data-key': 'sources', 'aria-labelledby': 'h-sources', 'data-testid': 'sources' },
    h('header', {}, h('h2', { id: 'h-sources' }, 'Sources'), h('span', { class: 'quiet' }, 'Delta tables, their newest version and its age')),
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Sources' }, h('table', {}, h('thead', {}, h('tr', {}, h('th', {}, 'Table'), h('th', { class: 'n' }, 'Version'), h('th', { class: 'n' }, 'Age'))),
      h('tbody', {}, rows.map((row) => h('tr', { 'data-key': row.name, 'data-testid': `source-${row.name}` }, h('td', {}, row.name), h('td', { class: 'n' }, row.version === null ? '–' : `v${row.version}`),
        h('td', { class: 'n' }, row.committed_at_ms ? h('span', { class: OLD_MS[row.name] && now - row.committed_at_ms > OLD_MS[row.name] ? 'old' : '', title: instant(row.committed_at_ms), 'data-since': row.committed_at_ms }, '') : row.failure ? h('span', { class: 'old', title: row.failure }, 'not readable') : '–')))))));
}

function letters({ dead_letters: { dead_letters: rows }, now_ms: now }) {
  return h('section', { class: 'card', 'data-key': 'letters', 'aria-labelledby': 'h-letters', 'data-testid': 'dead-letters' },
    h('header', {}, h('h2', { id: 'h-letters' }, 'Unreadable messages'), h('span', { class: 'quiet' }, 'dead letters: messages that are not usage events, newest first')),
    rows.length ? h('ol', { class: 'letters' }, rows.map((row) => h('li', { 'data-key': `${row.topic}-${row.partition}-${row.offset}-${row.element_index}` },
      h('p', {}, h('b', {}, row.cause), h('small', { class: 'num' }, ` ${when(row.appended_at_ms, now)} · ${row.topic}-${row.partition} at ${row.offset}${row.element_index === null ? '' : `, element ${row.element_index}`}`)),
      h('code', {}, row.sample === '' ? '(empty)' : row.sample, row.bytes > 400 ? ` … ${count(row.bytes)} bytes` : '')))) : h('p', { class: 'empty' }, 'None.'));
}

function batches({ batches: rows, now_ms: now }) {
  return h('section', { class: 'card', 'data-key': 'batches', 'aria-labelledby': 'h-batches', 'data-testid': 'batches' },
    h('header', {}, h('h2', { id: 'h-batches' }, 'Micro-batches')),
    h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': 'Micro-batches' }, h('table', {}, h('thead', {}, h('tr', {}, COLUMNS.map(([text, why], at) => h('th', { class: at ? 'n' : '', title: why }, h('abbr', { title: why }, text))))),
      h('tbody', {}, rows.slice(0, 25).map((row) => h('tr', { 'data-key': `${row.query_id}-${row.batch_id}` }, h('td', { title: `time epoch ${row.time_epoch}` }, row.batch_id), h('td', { class: 'n' }, when(row.processed_at_ms, now) === clock(row.processed_at_ms) ? clock(row.processed_at_ms, true) : when(row.processed_at_ms, now)), h('td', { class: 'n' }, count(row.good_count)), h('td', { class: 'n' }, millis(row.lag_ms)),
        [row.late_count, row.clamped_count, row.ignored_count, row.dead_count].map((value) => h('td', { class: value ? 'n' : 'n zero' }, count(value))), h('td', { class: 'n' }, `v${row.quota_version}`)))))));
}
