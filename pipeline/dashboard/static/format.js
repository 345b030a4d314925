// Numbers and instants as people read them; the same units as the command line: kB = 1000 bytes, times in UTC.

const UNITS = [['GB', 1e9], ['MB', 1e6], ['kB', 1e3], ['B', 1]];
export const TYPES = {
  producer_byte_rate: 'produce',
  consumer_byte_rate: 'fetch',
  request_percentage: 'request time',
};
export const LEVELS = ['', 'user and client-id', 'user, default client-id', 'user', 'default user, client-id',
  'default user and client-id', 'default user', 'client-id', 'default client-id', 'tenant, no quota of its own'];

/** Why a record was published. */
export const CAUSES = { violation: 'over its bound', debt: 'its debt', extended: 'over its bound, or its debt', renewed: 'still owes', expired: 'nothing owed', quota_changed: 'quota changed', forgiven: 'forgiven', recovered: 'after a restart' };

export const isByte = (type) => type !== 'request_percentage';

export function amount(value, per = '') {
  const [name, size] = UNITS.find(([, size]) => Math.abs(value) >= size * 0.99995) || UNITS[3];
  const shown = value / size;
  return `${shown.toFixed(size === 1 ? 0 : shown >= 99.95 ? 0 : 1)} ${name}${per}`;
}

export function rate(type, value) {
  if (value === null || value === undefined) return 'none';
  return isByte(type) ? amount(value, '/s') : `${value.toFixed(value >= 99.95 ? 0 : 1)} %`;
}

/** Both in the unit of the bound, so that they can be compared at a glance. */
export function pair(type, observed, bound) {
  if (bound === null || bound === undefined) return [rate(type, observed), ''];
  if (!isByte(type)) return [observed.toFixed(1), `${trim(bound)} %`];
  const [name, size] = UNITS.find(([, size]) => bound >= size) || UNITS[3];
  return [(observed / size).toFixed(1), `${trim(bound / size)} ${name}/s`];
}

const trim = (value) => String(Math.round(value * 100) / 100);

export function count(value) {
  return value === null || value === undefined ? '–' : Math.round(value).toLocaleString('en-US');
}

export function percent(part) {
  return part >= 10 ? times(part) : `${Math.floor(part * 100)} %`;
}

/** A rate in terms of its bound before "its bound", cut off as in the verdict: 126 % of, 5 ×. */
export function times(used) {
  return used < 2 ? `${Math.floor(used * 100)} % of` : `${used >= 10 ? Math.floor(used) : Math.floor(used * 10) / 10} ×`;
}

/** A length of time in one or two units: 0.4 s, 12.3 s, 2 min 5 s, 3 h 10 min, 2 d 4 h. */
export function span(ms) {
  if (ms === null || ms === undefined) return '–';
  const s = Math.max(ms, 0) / 1000;
  if (s < 60) return `${s.toFixed(1)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export function millis(ms) {
  return ms === null || ms === undefined ? '–' : ms >= 1_000 ? span(ms) : `${Math.round(ms)} ms`;
}

export function clock(ms, withTenths = false) {
  if (!ms) return '–';
  const text = new Date(ms).toISOString();
  return text.slice(11, withTenths ? 21 : 19);
}

export function instant(ms) {
  return ms ? `${new Date(ms).toISOString().slice(0, 19).replace('T', ' ')} UTC` : '–';
}

/** A date only where it is another day than today. */
export function when(ms, now) {
  return ms && now && Math.abs(now - ms) > 43_200_000 ? instant(ms).slice(5, 16) : clock(ms);
}

/** Without a client-id (null) it is a user, with all its client-ids. */
export function nameOf(user, clientId) {
  if (clientId === null) return `${user} / *`;
  return clientId === '' ? `${user} / (no client-id)` : `${user} / ${clientId}`;
}

export function clientHref(user, clientId, more = {}) {
  if (clientId === null) return `/client?${new URLSearchParams({ search: `${user}/` })}`;
  return `/client?${new URLSearchParams({ user, client_id: clientId, ...more })}`;
}

export function sensorName(row) {
  if (row.sensor_user && row.sensor_client_id) return '';
  return row.sensor_user ? `all clients of ${row.sensor_user} together` : `all users with ${row.sensor_client_id} together`;
}

export function ownerText(owner) {
  return owner || 'no owner';
}

/** A text as a sentence: it begins with a capital, but for the name kquota, and ends with a full stop. */
export function sentence(text) {
  return `${text.startsWith('kquota ') ? 'k' : text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? '' : '.'}`;
}
