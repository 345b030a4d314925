// Time charts on uPlot: rate against bound, throttles as bands, decisions as marks on the same axis.

import { rate } from './format.js';

const SCRIPT = '/static/uplot-1.6.32.min.js';
let loading = null;
/** Distances of the marks on the axis of time, in seconds. */
const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300];

/** uPlot, loaded once a chart is first drawn. */
export function library() {
  loading = loading || new Promise((done, fail) => {
    const script = document.createElement('script');
    script.src = SCRIPT;
    script.onload = () => done(window.uPlot);
    script.onerror = () => fail(new Error('the chart library did not load'));
    document.head.append(script);
  });
  return loading;
}

/** A colour of the theme as the canvas takes it. */
function colour(name) {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/**
 * Draws one quota type of a client.
 * facts: at_ms, observed, own, bound (null for none), bands, decisions, type, since_ms, until_ms, height.
 */
export function draw(uPlot, place, facts) {
  const seconds = facts.at_ms.map((ms) => ms / 1000);
  const data = [seconds, facts.observed, facts.own || seconds.map(() => null), seconds.map(() => facts.bound)];
  const ink = colour('ink-2'), line = colour('line-2'), blue = colour('blue'), warn = colour('warn'), soft = colour('blue-soft');
  const most = Math.max(...facts.observed.map((value) => value || 0), facts.bound || 0, 1) * 1.12;
  const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: '12px system-ui, sans-serif', gap: 6 };
  const chart = new uPlot({
    width: place.clientWidth,
    height: facts.height || 220,
    padding: [14, 30, 0, 0],
    tzDate: (at) => uPlot.tzDate(new Date(at * 1e3), 'Etc/UTC'),
    legend: { show: false },
    cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
    scales: { x: { time: true, range: () => [facts.since_ms / 1000, facts.until_ms / 1000] }, y: { range: () => [0, most] } },
    axes: [
      { ...axis, size: 30, space: 74, incrs: STEPS, values: [[60, '{HH}:{mm}', null, null, null, null, null, null, 1], [1, '{HH}:{mm}:{ss}', null, null, null, null, null, null, 1]] },
      { ...axis, size: 76, space: 34, values: (_, splits) => splits.map((value) => (value === 0 ? '0' : rate(facts.type, value))) },
    ],
    series: [
      {},
      { label: 'rate', stroke: blue, width: 1.8, fill: soft, spanGaps: false, points: { show: false } },
      { label: 'this client alone', stroke: blue, width: 1.2, dash: [2, 3], spanGaps: false, points: { show: false } },
      { label: 'bound', stroke: colour('ink'), width: 1.5, dash: [7, 4], spanGaps: false, points: { show: false } },
    ],
    hooks: {
      drawClear: [(u) => paintBands(u, facts, warn)],
      draw: [(u) => paintMarks(u, facts, warn)],
      setCursor: [(u) => facts.onCursor && facts.onCursor(u.cursor.idx)],
    },
  }, data, place);
  return chart;
}

function paintBands(u, facts, warn) {
  const { ctx } = u, { left, top, width, height } = u.bbox;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top, width, height);
  ctx.clip();
  for (const band of facts.bands) {
    const from = u.valToPos(band.start_ms / 1000, 'x', true), to = u.valToPos(band.end_ms / 1000, 'x', true);
    ctx.globalAlpha = band.quota_type === facts.type ? 0.16 : 0.06;
    ctx.fillStyle = warn;
    ctx.fillRect(from, top, Math.max(to - from, 1.5), height);
    // A line on top as well: colour alone does not show a band to everybody.
    ctx.globalAlpha = band.quota_type === facts.type ? 1 : 0.35;
    ctx.fillRect(from, top, Math.max(to - from, 1.5), 3 * devicePixelRatio);
  }
  ctx.restore();
}

function paintMarks(u, facts, warn) {
  const { ctx } = u, { left, top, width, height } = u.bbox, dpr = devicePixelRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(left, top - 14 * dpr, width, height + 14 * dpr);
  ctx.clip();
  for (const one of facts.decisions) {
    const x = u.valToPos(one.evaluated_at_ms / 1000, 'x', true), y = u.valToPos(one.observed, 'y', true);
    ctx.beginPath();
    ctx.arc(x, Math.max(y, top + 3 * dpr), 2.3 * dpr, 0, 7);
    ctx.strokeStyle = ctx.fillStyle = warn;
    ctx.lineWidth = 1.2 * dpr;
    if (one.asks_hold) ctx.fill();
    else ctx.stroke();
  }
  ctx.restore();
}
