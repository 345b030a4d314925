// The frame around the views: which one the address names, the newest state, the banner and countdowns.

import { h, show, withCommand } from './dom.js';
import { clock, sentence, span } from './format.js';
import { NeedsToken, follow, hasToken, isLetIn, setToken } from './net.js';

/** Path → name, and what loads the view. */
const VIEWS = {
  '/': ['now', () => import('./now.js')], '/client': ['client', () => import('./client.js')],
  '/quotas': ['quotas', () => import('./quotas.js')], '/pipeline': ['pipeline', () => import('./pipeline.js')],
};
const LOST_AFTER_MS = 4_000;
const unknown = {
  title: () => 'Not found',
  open(place, _parameters, frame) {
    show(place, message(`There is no view at ${location.pathname}`, '', '/', 'Go to Now'));
    frame.ready();
  },
};
const main = document.getElementById('main');
const frame = { head: null, skewMs: 0, heardAt: 0, view: null, opening: null, stop: null, lost: null, isLetIn: false };

/** The server's clock: countdowns are right also where this machine's clock is not. */
const serverNow = () => Date.now() + frame.skewMs;

async function open(push) {
  const [name, load] = VIEWS[location.pathname] || ['', () => unknown];
  if (frame.stop) frame.stop();
  if (frame.view && frame.view.close) frame.view.close();
  frame.view = frame.stop = null;
  for (const link of document.querySelectorAll('nav [data-view]')) {
    if (link.dataset.view === name) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  main.dataset.view = name;
  main.dataset.ready = 'false';
  if (push) {
    main.replaceChildren(h('p', { class: 'quiet pad' }, 'Loading'));
    window.scrollTo(0, 0);
    main.focus({ preventScroll: true });
  }
  const opening = frame.opening = {};
  try {
    const [view] = await Promise.all([load(), letIn()]);
    if (frame.opening === opening) begin(name, view);
  } catch (error) {
    if (frame.opening === opening) context.failed(error);
  }
}

/** Data are asked for only with a token that the dashboard takes: browsers log each refusal as an error of the page. */
async function letIn() {
  if (frame.isLetIn) return;
  frame.isLetIn = await isLetIn().catch(() => true); // no connection: `follow` says so, and tries again
  if (!frame.isLetIn) throw new NeedsToken();
}

function begin(name, view) {
  frame.view = view;
  document.title = `${view.title(new URLSearchParams(location.search))} · kquota`;
  view.open(main, new URLSearchParams(location.search), context);
  frame.stop = follow(name === 'now' ? 'summary' : 'head', heard, lost);
}

/** A sentence in place of a view, with what to do and a link. */
function message(text, fix, href, label) {
  return h('section', { class: 'card pad', 'data-testid': 'failed' }, h('h1', {}, sentence(text)),
    fix && !fix.startsWith('see /api/') ? h('p', { class: 'quiet' }, withCommand(sentence(fix))) : null, h('p', {}, h('a', { href, 'data-nav': true }, label)));
}

/** The address of this view with nothing but the client. */
function plain() {
  const given = new URLSearchParams(location.search);
  const kept = new URLSearchParams([...given].filter(([name]) => name === 'user' || name === 'client_id'));
  return `${location.pathname}${String(kept) ? `?${kept}` : ''}`;
}

/** The name of the view in the address, as in the navigation. */
const title = () => document.querySelector('nav [aria-current]')?.textContent || 'Now';

const context = {
  now: serverNow,
  go(path) {
    history.pushState(null, '', path);
    open(true);
  },
  replace(path) {
    history.replaceState(null, '', path);
  },
  failed(error) {
    if (error.name === 'AbortError') return;
    if (error instanceof NeedsToken) askToken();
    else show(main, message(error.message, error.fix, plain(), `Open ${title()} without it`));
  },
  ready() {
    tick();
    main.dataset.ready = 'true';
  },
};

function heard(state) {
  frame.head = state;
  frame.lost = null;
  frame.heardAt = Date.now();
  frame.skewMs = state.now_ms - Date.now();
  if (frame.view && frame.view.state) frame.view.state(state);
  tick();
  showHealth();
}

function lost(error) {
  if (error instanceof NeedsToken || error.isFinal) {
    context.failed(error);
    return;
  }
  frame.lost = error;
  showHealth();
}

function showHealth() {
  const silentMs = Date.now() - frame.heardAt;
  const isLost = frame.heardAt > 0 && (silentMs > LOST_AFTER_MS) || (frame.lost && silentMs > 1_500);
  const health = frame.head && frame.head.health;
  const pulse = document.getElementById('pulse');
  const banner = document.getElementById('banner');
  stale(isLost ? frame.head && frame.head.now_ms : health && health.state !== 'live' && health.last_batch_age_ms !== null ? frame.head.as_of_ms : null);
  if (isLost) {
    pulse.dataset.state = 'lost';
    pulse.lastElementChild.textContent = 'No connection';
    showBanner(banner, 'lost', 'No connection to the dashboard', 'The page reconnects by itself.');
    return;
  }
  if (!health) return;
  pulse.dataset.state = health.state;
  const ageMs = health.last_batch_age_ms === null ? null : health.last_batch_age_ms + Math.max(serverNow() - frame.head.now_ms, 0);
  pulse.lastElementChild.textContent = health.state === 'live' ? `Live · ${span(ageMs)}` : health.title;
  pulse.title = frame.head.batch_id === null ? health.title : `micro-batch ${frame.head.batch_id}, collected ${span(ageMs)} ago`;
  if (health.state === 'live') banner.hidden = true;
  else showBanner(banner, health.state, health.title, health.text);
  foot();
}

/** Figures that are not of now are grey, and the banner has their time. */
function stale(asOfMs) {
  main.dataset.stale = String(Boolean(asOfMs));
  frame.asOf = asOfMs ? `Figures as of ${clock(asOfMs)} UTC.` : '';
}

function showBanner(banner, state, title, text) {
  banner.hidden = false;
  banner.className = `banner ${state}`;
  banner.dataset.state = state;
  show(banner, h('strong', {}, title), text ? h('span', {}, withCommand(text)) : null, frame.asOf ? h('span', { 'data-testid': 'as-of' }, frame.asOf) : null);
}

function foot() {
  const { head } = frame;
  show(document.getElementById('foot'),
    h('span', {}, `cluster ${head.cluster || 'not known yet'}`),
    h('span', {}, `${clock(head.now_ms)} UTC`),
    h('a', { href: '/pipeline', 'data-nav': true }, head.batch_id === null ? 'no micro-batch' : `micro-batch ${head.batch_id}`));
}

function askToken() {
  frame.isLetIn = false;
  if (!hasToken() && main.querySelector('[data-testid=needs-token]')) return;
  const wasGiven = hasToken();
  const field = h('input', { id: 'token', type: 'password', autocomplete: 'off', 'data-testid': 'token', required: true });
  const enter = (event) => {
    event.preventDefault();
    setToken(field.value.trim());
    open(true);
  };
  main.replaceChildren(h('section', { class: 'card pad narrow', 'data-testid': 'needs-token' }, h('h1', {}, wasGiven ? 'This token is not the one of this dashboard.' : 'This dashboard needs a token.'),
    h('form', { on: { submit: enter } }, h('label', { for: 'token' }, 'Token'), field, h('button', { type: 'submit' }, 'Open')),
    h('p', { class: 'quiet' }, 'It is the one of --token-file or KQUOTA_DASHBOARD_TOKEN where the dashboard was started. It is kept for this tab, and forgotten when the tab is closed. ', h('a', { href: location.href }, 'Try again without a token'))));
  setToken('');
  field.focus();
}

/** Everything that counts: data-until counts down, data-since counts up. */
function tick() {
  const at = serverNow();
  for (const node of document.querySelectorAll('[data-until]')) {
    const left = Number(node.dataset.until) - at;
    const text = left > 0 ? span(left) : 'ending';
    if (node.textContent !== text) node.textContent = text;
  }
  for (const node of document.querySelectorAll('[data-since]')) {
    const text = span(at - Number(node.dataset.since));
    if (node.textContent !== text) node.textContent = text;
  }
  for (const node of document.querySelectorAll('[data-from]')) {
    const from = Number(node.dataset.from), to = Number(node.dataset.to);
    node.style.setProperty('--part', `${Math.min(Math.max((at - from) / Math.max(to - from, 1), 0), 1) * 100}%`);
  }
}

document.addEventListener('click', (event) => {
  const link = event.target.closest && event.target.closest('a[data-nav]');
  if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button) return;
  event.preventDefault();
  context.go(link.getAttribute('href'));
});
document.addEventListener('keydown', (event) => {
  if (event.metaKey || event.ctrlKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.nodeName)) return;
  const paths = { 1: '/', 2: '/client', 3: '/quotas', 4: '/pipeline' };
  if (paths[event.key]) context.go(paths[event.key]);
  if (event.key === '/') {
    const field = document.querySelector('[data-search]');
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});
addEventListener('popstate', () => open(true));
open(false);
setInterval(tick, matchMedia('(prefers-reduced-motion: reduce)').matches ? 1_000 : 100);
setInterval(showHealth, 500);
