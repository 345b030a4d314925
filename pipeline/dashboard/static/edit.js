// An edit of one quota: its effect, a replay with it, and, with --allow-edits, the edit itself.

import { copied, h, show, withCommand } from './dom.js';
import { TYPES, isByte, nameOf, rate } from './format.js';
import { post } from './net.js';

const BASELINES = { today: "with today's quotas", happened: 'as it happened' };
const EXACT = [['GB/s', 1e9], ['MB/s', 1e6], ['kB/s', 1e3]];

/** A bound as it may be typed again without a loss. */
function typed(type, value) {
  if (value === undefined) return '';
  if (!isByte(type)) return `${value}%`;
  const [unit, size] = EXACT.find(([, size]) => value >= size && value % size === 0) || ['', 1];
  return `${value / size}${unit}`;
}

/** Opens the form over a row of the quota table. */
export function edit(row, version, mayWrite, done) {
  const field = (name, label, value, hint) => h('label', { class: 'field' }, h('span', {}, label), h('input', { type: 'text', name, value, placeholder: hint, autocomplete: 'off', 'data-testid': `field-${name}` }));
  const bounds = Object.keys(TYPES).map((type) => field(type, TYPES[type], row.bounds[type] ? typed(type, row.bounds[type].bound) : '', 'none'));
  const mode = h('label', { class: 'field' }, h('span', {}, 'mode'), h('select', { name: 'mode' }, ['enforce', 'shadow', 'exempt'].map((one) => h('option', { value: one, selected: one === row.mode }, one))));
  const baseline = h('label', { class: 'field' }, h('span', {}, 'compare What if? with the usage'), h('select', { name: 'baseline', 'data-testid': 'field-baseline' }, Object.entries(BASELINES).map(([value, name]) => h('option', { value }, name))));
  const answer = h('div', { class: 'answer', role: 'status', 'aria-live': 'polite', 'data-testid': 'edit-answer' });
  const reason = mayWrite ? field('reason', 'reason', '', 'why; kept with the edit') : null;
  const write = mayWrite ? h('button', { type: 'button', class: 'button strong', disabled: true, 'data-testid': 'edit-write', on: { click: () => act('edit') } }, 'Write') : null;
  const form = h('form', { method: 'dialog', on: { submit: (event) => { event.preventDefault(); act('plan'); }, input: () => { if (write) write.disabled = true; } } },
    h('h2', {}, row.entity), h('p', { class: 'quiet' }, `based on version ${version}. ${mayWrite ? 'Check and What if? only show the effect; Write saves it.' : 'Preview only; nothing is saved.'}`),
    h('div', { class: 'fields' }, bounds, mode, baseline, reason), answer,
    h('div', { class: 'actions' }, h('button', { type: 'button', class: 'button', on: { click: () => dialog.close() } }, 'Close'),
      h('button', { type: 'button', class: 'button', 'data-testid': 'edit-what-if', on: { click: () => act('what-if') } }, 'What if?'), h('button', { type: 'submit', class: 'button strong', 'data-testid': 'edit-plan' }, 'Check'), write));
  const dialog = h('dialog', { 'aria-label': 'Edit quota', 'data-testid': 'edit', on: { close: () => { if (running) running.abort(); dialog.remove(); } } }, form);
  let running = null;

  function asked() {
    const given = new FormData(form), values = {};
    for (const type of Object.keys(TYPES)) {
      const text = given.get(type).trim();
      if (text !== (row.bounds[type] ? typed(type, row.bounds[type].bound) : '')) values[type] = text || null;
    }
    if (given.get('mode') !== row.mode) values.mode = given.get('mode');
    return { user: row.user, client_id: row.client_id, values, if_version: version, reason: given.get('reason') || '', baseline: given.get('baseline') };
  }

  async function act(what) {
    const body = asked(), mine = new AbortController(), begun = Date.now();
    if (running) running.abort();
    running = mine;
    let percent = null;
    const progress = () => show(answer, h('p', { class: 'quiet', 'data-testid': 'edit-progress' }, `Replaying the last 15 minutes, ${percent === null ? '' : `${percent} % done, `}${Math.round((Date.now() - begun) / 1_000)} s so far`), h('progress', { 'aria-label': 'Replaying', max: 100, value: percent }),
      h('button', { type: 'button', class: 'button', 'data-testid': 'edit-stop', on: { click: () => mine.abort() } }, 'Stop'));
    if (what === 'what-if') progress();
    else show(answer, h('p', { class: 'quiet' }, '…'));
    const ticking = what === 'what-if' ? setInterval(progress, 1_000) : 0;
    try {
      const answered = await post(`quotas/${what}`, what === 'edit' ? body : { ...body, reason: '' }, mine.signal, what === 'what-if' ? (done) => { percent = done; progress(); } : undefined);
      clearInterval(ticking);
      if (what === 'plan') show(answer, planned(answered));
      if (what === 'what-if') show(answer, tried(answered));
      if (what === 'edit') {
        show(answer, h('p', {}, `Written: version ${answered.version}.`));
        done();
      }
      if (write) write.disabled = what === 'edit';
    } catch (error) {
      clearInterval(ticking);
      if (mine.signal.aborted) {
        if (running === mine) show(answer, h('p', { class: 'quiet' }, 'Stopped.'));
        return;
      }
      show(answer, h('p', { class: 'wrong' }, error.message), error.fix ? h('p', { class: 'quiet' }, withCommand(error.fix)) : null);
    }
  }

  document.body.append(dialog);
  dialog.showModal();
}

/** The edit as a command: the way to make it where edits are off. */
const asCommand = (command) => command && h('p', {}, copied(command, 'Copy as kquota quotas alter …'));

function planned(answered) {
  if (!answered.texts.length) return h('p', {}, 'No change.');
  return [h('ul', { class: 'diff' }, answered.texts.map((text) => h('li', {}, text))),
    answered.warnings.map((text) => h('p', { class: 'wrong', 'data-testid': 'edit-warning' }, text)),
    h('p', { class: 'quiet' }, answered.clients_total ? `${answered.clients_total} bound${answered.clients_total === 1 ? '' : 's'} of clients seen lately would change:` : 'No client seen lately would get another level, bound or mode.'),
    h('ul', { class: 'diff' }, answered.clients.map((one) => h('li', {}, `${nameOf(one.user, one.client_id)}: ${TYPES[one.quota_type]} ${rate(one.quota_type, one.old_bound)} → ${rate(one.quota_type, one.new_bound)}${one.old_mode !== one.new_mode ? `, ${one.old_mode || 'no quota'} → ${one.new_mode || 'no quota'}` : ''}`))), asCommand(answered.command)];
}

function tried({ about, totals, clients, command }) {
  const signed = (value) => `${value > 0 ? '+' : ''}${value.toFixed(1)}`;
  return [h('p', {}, h('b', {}, `${totals.throttled} of ${totals.clients} clients`), ` would have been throttled in the last 15 minutes, for ${totals.throttle_seconds.toFixed(1)} s in all. Compared with the usage ${about.baseline}: ${signed(totals.throttle_seconds_change)} s, ${totals.newly_throttled} newly, ${totals.no_longer_throttled} no longer.`),
    h('ul', { class: 'diff' }, clients.map((one) => h('li', { class: one.is_off ? 'quiet' : null }, `${nameOf(one.user, one.client_id)}: held ${one.throttle_seconds_baseline.toFixed(1)} → ${one.throttle_seconds_candidate.toFixed(1)} s${one.is_off ? ` (unsure: a replay of what happened is off by ${Math.round(one.replay_off_percent)} %)` : ''}`))), asCommand(command)];
}
